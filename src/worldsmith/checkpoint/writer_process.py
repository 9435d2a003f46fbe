"""A process of its own that writes tensors to DCP files, so that the training keeps Python's global lock to itself.

Writing many tensors is as much Python as it is disk: in a thread, a second of it takes up to a second from the steps.
The process is forked before the run has grown, costs no memory of its own, and ends with the process that made it. It
runs no collectives: planning, metadata and all that several ranks agree on stay with the caller.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint import dcp
from worldsmith.checkpoint.save_error import causes

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
    from torch.distributed.checkpoint.storage import WriteResult


class WriterProcess:
    """Writes what `write` sends to it. One caller at a time."""

    def __init__(self) -> None:
        own, other = Pipe(duplex=True)
        pid = os.fork()
        if pid == 0:
            own.close()
            serve(other)
        other.close()
        self._connection, self._pid = own, pid
        self._memory: Tensor | None = None
        self.close = weakref.finalize(self, end, own, pid, owner=os.getpid())
        """Ends the process; happens by itself when this object is no longer used."""

    @property
    def is_alive(self) -> bool:
        return bool(self.close.alive)

    def allocate(self, size: int) -> Tensor:
        """`size` bytes that the process sees too, uint8: tensors that lie there need not be sent. The last ones count.

        They have no name and no limit but the machine's memory, unlike /dev/shm, which is tiny in many containers. When
        the process has died they are there all the same.
        """
        handle = os.memfd_create("worldsmith")
        os.ftruncate(handle, size)
        self._memory = mapped(handle, size)
        try:
            if self.is_alive:
                self._connection.send(size)
                send_handle(self._connection, handle, self._pid)
        except OSError:
            self.close()
        finally:
            os.close(handle)
        return self._memory

    def write(self, folder: Path, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """Writes the tensors of a rank's plan to files in `folder` and syncs them.

        Raises what writing raised there, and ChildProcessError when the process has died; then `is_alive` is False.
        """
        results: Any = None
        try:
            tensors = [planner.resolve_data(item) for item in plan.items]
            places = [place_in(self._memory, tensor) for tensor in tensors]  # type: ignore[arg-type]
            self._connection.send((folder, replace(plan, planner_data=None), places))
            for tensor, place in zip(tensors, places):
                if place is None:
                    self._connection.send_bytes(raw_bytes(tensor))  # type: ignore[arg-type]
            results = self._connection.recv()
        except (EOFError, OSError):
            self.close()
        if results is None:
            what = "the process that writes checkpoints has died (out of memory?); a thread writes the next ones"
            raise ChildProcessError(errno.ECHILD, what)
        if isinstance(results, Exception):
            raise results
        return list(results)


def serve(connection: Connection) -> None:
    """The life of the process: jobs until the other end is closed. Never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # a stop is for the run, which may have a save to finish
        memory: Tensor | None = None
        while True:
            job = connection.recv()
            if isinstance(job, int):
                handle = recv_handle(connection)
                memory = mapped(handle, job)
                os.close(handle)
                continue
            folder, plan, places = job
            tensors = SentTensors(connection, plan.items, places, memory)
            try:
                outcome: Any = dcp.file_writer(folder).write_data(plan, tensors).value()  # type: ignore[arg-type]
            except Exception as error:
                # What is sent loses the errors behind it; of those, the file system's is the one that matters.
                outcome = next((cause for cause in causes(error) if isinstance(cause, OSError)), error)
            tensors.skip_rest()
            connection.send(outcome)
    except (EOFError, ConnectionError):  # the owner has gone
        pass
    except BaseException:  # the owner only learns that this process has died
        traceback.print_exc()
    finally:
        os._exit(0)


class SentTensors:
    """Stands in for the planner in the process: the tensors of the plan, in its order, from memory or from the pipe."""

    def __init__(
        self,
        connection: Connection,
        items: Sequence[WriteItem],
        places: Sequence[int | None],
        memory: Tensor | None,
    ) -> None:
        self.connection, self.memory = connection, memory
        self.waiting = list(reversed(list(zip(items, places, strict=True))))

    def resolve_data(self, item: WriteItem) -> Tensor:
        import torch

        expected, place = self.waiting.pop()
        if item.index != expected.index or item.tensor_data is None:
            raise RuntimeError(f"asked for {item.index}, but {expected.index} is what was sent")
        shape, dtype = item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype
        if place is not None and self.memory is not None:
            return self.memory[place : place + shape.numel() * dtype.itemsize].view(dtype).view(shape)
        tensor = torch.empty(shape, dtype=dtype)
        self.connection.recv_bytes_into(raw_bytes(tensor))  # type: ignore[arg-type]
        return tensor

    def skip_rest(self) -> None:
        """Takes what a failed write has left in the pipe."""
        while self.waiting:
            _, place = self.waiting.pop()
            if place is None:
                self.connection.recv_bytes()


def mapped(handle: int, size: int) -> Tensor:
    """The bytes of a file as a tensor; whoever maps the same file sees the same bytes."""
    import torch

    return torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)


def place_in(memory: Tensor | None, tensor: Tensor) -> int | None:
    """Where a tensor begins in `memory`; None when it does not lie there in one piece."""
    if memory is None or not tensor.is_contiguous() or tensor.numel() == 0:
        return None
    place = tensor.data_ptr() - memory.data_ptr()
    return place if 0 <= place < memory.numel() else None


def raw_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data


def end(connection: Connection, pid: int, *, owner: int) -> None:
    """Ends the process. Does nothing in a fork of its owner, such as a worker of the data loader, which has a copy."""
    if os.getpid() != owner:
        return
    connection.close()
    os.kill(pid, signal.SIGKILL)  # a fork that lives on keeps its copy of the connection open
    os.waitpid(pid, 0)
