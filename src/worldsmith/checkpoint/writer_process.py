"""A process of its own that writes tensors to DCP files, so that the training keeps Python's global lock to itself.

Writing many tensors is as much Python as it is disk: in a thread, a second of it takes up to a second from the steps.
The process is forked before the run has grown, costs no memory of its own, and ends with the process that made it. It
runs no collectives: planning, metadata and all that several ranks agree on stay with the caller.
"""

from __future__ import annotations

import errno
import os
import signal
import weakref
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        self._connection = own
        self.close = weakref.finalize(self, end, own, pid, owner=os.getpid())
        """Ends the process; happens by itself when this object is no longer used."""

    @property
    def is_alive(self) -> bool:
        return bool(self.close.alive)

    def write(self, folder: Path, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """Writes the tensors of a rank's plan to files in `folder` and syncs them.

        Raises what writing raised there, and ChildProcessError when the process has died; then `is_alive` is False.
        """
        results: Any = None
        try:
            self._connection.send((folder, replace(plan, planner_data=None)))
            for item in plan.items:
                self._connection.send_bytes(raw_bytes(planner.resolve_data(item)))  # type: ignore[arg-type]
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
        while True:
            folder, plan = connection.recv()
            tensors = SentTensors(connection, plan.items)
            try:
                outcome: Any = file_writer(folder).write_data(plan, tensors).value()  # type: ignore[arg-type]
            except Exception as error:
                # What is sent loses the errors behind it; of those, the file system's is the one that matters.
                outcome = next((cause for cause in causes(error) if isinstance(cause, OSError)), error)
            tensors.skip_rest()
            connection.send(outcome)
    except BaseException:  # also EOF: nobody is left who could be told
        pass
    finally:
        os._exit(0)


class SentTensors:
    """Stands in for the planner in the process: the tensors of the plan as they come in, in its order."""

    def __init__(self, connection: Connection, items: Sequence[WriteItem]) -> None:
        self.connection = connection
        self.waiting = list(reversed(items))

    def resolve_data(self, item: WriteItem) -> Tensor:
        import torch

        expected = self.waiting.pop()
        if item.index != expected.index or item.tensor_data is None:
            raise RuntimeError(f"asked for {item.index}, but {expected.index} is what was sent")
        tensor = torch.empty(item.tensor_data.chunk.sizes, dtype=item.tensor_data.properties.dtype)
        self.connection.recv_bytes_into(raw_bytes(tensor))  # type: ignore[arg-type]
        return tensor

    def skip_rest(self) -> None:
        """Takes what a failed write has left in the pipe."""
        while self.waiting:
            self.waiting.pop()
            self.connection.recv_bytes()


def file_writer(folder: Path) -> Any:
    """DCP's writer as it is used here: one file for each rank, synced, and no use of CUDA (tensors are on the CPU)."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    return FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    import torch

    return memoryview(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def end(connection: Connection, pid: int, *, owner: int) -> None:
    """Ends the process. Does nothing in a fork of its owner, such as a worker of the data loader, which has a copy."""
    if os.getpid() != owner:
        return
    connection.close()
    os.kill(pid, signal.SIGKILL)  # a fork that lives on keeps its copy of the connection open
    os.waitpid(pid, 0)
