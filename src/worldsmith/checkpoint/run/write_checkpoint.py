"""Writes one checkpoint: every rank its shard; rank 0 publishes it and removes old ones. In this process or a fork."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import signal
import traceback
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from worldsmith.checkpoint.dcp import dcp_folder as dcp
from worldsmith.checkpoint.run.find_checkpoint import (
    BEST_POINTER,
    POINTER,
    checkpoint_folders,
    folder_iteration,
    is_later,
    read_best,
)
from worldsmith.distributed.coordination_group import Kind, Peers, portable
from worldsmith.distributed.process_signals import STOP_SIGNALS, signal_at_parents_end
from worldsmith.files import atomic, checksum_manifest
from worldsmith.files.locks import take_unleased

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint.planner import SavePlanner

    from worldsmith.checkpoint.run.staging_buffer import StagedLayout

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Save:
    """A checkpoint to write, without its tensors: folder, data loader state, and which checkpoints to keep."""

    target: Path
    """Folder of the new checkpoint."""
    texts: Mapping[str, str]
    """File name -> content of small text files in the checkpoint."""
    position: str | None
    """Data loader state of this rank as JSON text; None: it is not saved."""
    data_rank: int
    """Data-parallel rank that `position` belongs to."""
    keep_latest_k: int | None
    keep_every: int | None
    is_best: bool = False


def write_checkpoint(save: Save, planners: Mapping[str, SavePlanner], peers: Peers, *, staged: bool) -> None:
    """Writes a checkpoint; its folder appears only when complete. Collective over `peers`, in any thread or process.

    Args:
        save: Target and metadata.
        planners: Part of the checkpoint, such as "model" -> DCP save planner with the tensors to write.
        peers: Ranks that write the checkpoint together.
        staged: Whether the tensors are in host RAM and CUDA must not be used.
    """
    aside, made = temporary_folder(save.target), list[os.stat_result]()
    peers.run_on_main(lambda: made.append(write_texts(aside, save.texts)))
    for part, planner in planners.items():
        peers.run_on_main(lambda: require_folder(aside, made[0], save.texts))
        dcp.save_part(aside / part, planner, peers, staged=staged)
    positions = peers.run(lambda: (save.data_rank, save.position))
    peers.run_on_main(lambda: require_folder(aside, made[0], save.texts))
    peers.run_on_main(lambda: write_positions(aside / "dataloader", positions))
    share = peers.scatter(lambda: divide_files(aside, peers.size))
    shares = peers.run(lambda: checksum_manifest.summarize_files(aside, [aside / name for name in share]))
    peers.run_on_main(lambda: publish_checkpoint(save, shares))


def temporary_folder(target: Path) -> Path:
    """Returns the temporary folder next to `target` in which the checkpoint `target` is written."""
    return target.with_name(f"{atomic.SAVING}{target.name}")


def divide_files(aside: Path, shares: int) -> list[list[str]]:
    """Divides the files in the folder `aside` into `shares` lists of relative paths, one per rank."""
    names = [str(path.relative_to(aside)) for path in checksum_manifest.list_files(aside)]
    return [names[number::shares] for number in range(shares)]


def publish_checkpoint(save: Save, shares: list[dict[str, list[int]]]) -> None:
    """Publishes a complete checkpoint: writes its manifest, renames the folder, sets pointers, removes old checkpoints.

    Args:
        save: Target and metadata.
        shares: For each rank: relative path -> [size in bytes, CRC-32] of the files that the rank has read.
    """
    aside, target = temporary_folder(save.target), save.target
    checksum_manifest.write_manifest(aside, {name: entry for share in shares for name, entry in share.items()})
    atomic.publish_folder(aside, target)
    atomic.write_text(target.parent / POINTER, f"{target.name}\n")
    if save.is_best:
        atomic.write_text(target.parent / BEST_POINTER, f"{target.name}\n")
    remove_old(target, save.keep_latest_k, save.keep_every)


def remove_old(newest: Path, keep_latest_k: int | None, keep_every: int | None) -> None:
    """Removes old checkpoints of a run. A checkpoint that another process is reading stays until a later save.

    Args:
        newest: Folder of the checkpoint that was just saved. This one and the best checkpoint are always kept.
        keep_latest_k: Number of newest checkpoints to keep; None: no checkpoint is removed.
        keep_every: Checkpoints whose step is a multiple of this number are also kept; None: no such checkpoints.
    """
    best = read_best(newest.parent)
    for path in outdated(checkpoint_folders(newest.parent), newest, best, keep_latest_k, keep_every):
        remove_unless_read(path)


def outdated(
    found: list[Path], newest: Path, best: Path | None, keep_latest_k: int | None, keep_every: int | None
) -> list[Path]:
    """Returns the checkpoints that `remove_old` removes.

    Args:
        found: Folders of all checkpoints, the newest first.
        newest: Folder of the checkpoint that was just saved.
        best: Folder of the best checkpoint; None: not known.
        keep_latest_k: Number of newest checkpoints to keep; None: all.
        keep_every: Checkpoints whose step is a multiple of this number are also kept; None: no such checkpoints.
    """
    if keep_latest_k is None:
        return []
    # Checkpoints of later steps than the newest one exist if the run was resumed from an earlier step: remove them.
    kept = [newest, best, *[path for path in found if is_later(newest, path)][: keep_latest_k - 1]]
    if keep_every is not None:
        kept += [path for path in found if folder_iteration(path) % keep_every == 0 and is_later(newest, path)]
    return [path for path in found if path not in kept]


def remove_unless_read(folder: Path) -> None:
    """Removes a checkpoint folder unless another process is reading it; logs if the folder stays."""
    try:
        handle = take_unleased(folder / checksum_manifest.MANIFEST)
    except OSError as error:
        logger.warning("%s cannot be removed and stays: %s", folder, error)
        return
    if handle is None:
        logger.info("%s is not removed yet: another process reads it", folder.name)
        return
    atomic.remove_folder(folder)
    os.close(handle)


def tidy_up(folder: Path) -> None:
    """Removes the temporary folders of interrupted saves from the folder of the checkpoints.

    A temporary folder that contains a complete checkpoint is renamed to the final name of the checkpoint instead.
    """
    for aside in folder.glob(f"{atomic.SAVING}iter_*"):
        target = folder / aside.name.removeprefix(atomic.SAVING)
        if not target.exists() and checksum_manifest.find_damage(aside) is None:
            atomic.publish_folder(aside, target)
            logger.info("%s was already complete when its save was interrupted, so it is kept", target.name)
    leftovers = atomic.remove_leftovers(folder)
    if leftovers:
        logger.info("removed the remains of an interrupted save in %s: %s", folder, ", ".join(leftovers))


def require_folder(aside: Path, created: os.stat_result, texts: Iterable[str]) -> None:
    """Raises FileNotFoundError if the run folder was moved during the save, so that `aside` is not the created folder.

    If torch has created another folder at the path `aside` in the meantime, that folder is removed.

    Args:
        aside: Temporary folder of the checkpoint.
        created: Result of `os.stat` on the folder after its creation, as its identity.
        texts: Names of the text files that were written to the folder; a folder that torch created has none of them.
    """
    if os.path.samestat(aside.stat(), created):
        return
    if not any((aside / name).exists() for name in texts):
        shutil.rmtree(aside)
        for place in list(aside.parents)[:2]:
            with suppress(OSError):  # not empty: it contains files of others
                place.rmdir()
    raise FileNotFoundError(errno.ENOENT, "the run folder was moved during the save", str(aside))


def write_texts(aside: Path, texts: Mapping[str, str]) -> os.stat_result:
    """Creates the folder `aside` with the text files `texts` (name -> content); returns its `os.stat`."""
    aside.mkdir()  # without parents: if they are missing, the run folder was moved
    for name, text in texts.items():
        (aside / name).write_text(text, encoding="utf-8")
    return aside.stat()


def write_positions(folder: Path, positions: list[tuple[int, str | None]]) -> None:
    """Writes the data loader states to `folder/rank_N.json`, one file per data-parallel rank N.

    Args:
        folder: Folder to create.
        positions: (data-parallel rank, state as JSON text or None) of every rank. Entries with the same data-parallel
            rank have the same state; None: no file is written for this rank.
    """
    folder.mkdir()
    for rank, position in positions:
        if position is not None:
            (folder / f"rank_{rank}.json").write_text(position, encoding="utf-8")


class WriterProcess:
    """A forked process that writes checkpoints from memory that it shares with the training process.

    Only one thread at a time may call the methods.
    """

    def __init__(self) -> None:
        own, other = Pipe(duplex=True)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            own.close()
            serve(other, parent)
        other.close()
        self._connection, self._pid = own, pid
        self._layout: StagedLayout | None = None
        self.close = weakref.finalize(self, end_process, own, pid, owner=os.getpid())
        """Ends the writer process; called automatically when this object is garbage-collected."""

    @property
    def is_alive(self) -> bool:
        return bool(self.close.alive)

    def allocate(self, size: int) -> Tensor:
        """Allocates memory shared with the writer process, from which `write` saves; returns `size` bytes as uint8.

        Anonymous shared memory is limited only by the machine's RAM, unlike /dev/shm, which is tiny in many containers.
        The memory stays valid if the writer process dies. After a later call, `write` saves from the newer memory.
        """
        handle = os.memfd_create("worldsmith")
        try:
            os.ftruncate(handle, size)
            memory = map_memory(handle, size)
            if self.is_alive:
                self._connection.send(Memory(size))
                send_handle(self._connection, handle, self._pid)
        except ConnectionError:
            logger.warning("%s", self._process_died())
        finally:
            os.close(handle)
        return memory

    def write(self, save: Save, layout: StagedLayout, peers: Peers) -> Exception | None:
        """Makes the writer process save a checkpoint from the shared memory; relays its messages to the other ranks.

        Args:
            save: Target and metadata.
            layout: Layout of the tensors in the shared memory.
            peers: Ranks that write the checkpoint together.

        Returns:
            None if this rank had no error. Otherwise the error of this rank, of which the other ranks are not informed;
            it is a ChildProcessError if the writer process has died (`is_alive` is then False).

        Raises:
            PeerError: If the save failed on all ranks.
        """
        failure: Exception | None = None
        outcome: Exception | None
        try:
            if layout is not self._layout:
                self._connection.send(layout)
                self._layout = layout
            self._connection.send(Job(save, peers.rank, peers.size))
            while isinstance(message := self._connection.recv(), ExchangeRequest):
                answer: Any
                try:
                    answer = peers.exchange(*message)
                except Exception as raised:
                    answer = failure = raised
                self._connection.send(answer)
            outcome = message
        except (EOFError, OSError):
            outcome = self._process_died()
        except Exception as error:  # not picklable: the state of the connection is unknown
            self.close()
            outcome = error
        if failure is not None:
            raise failure
        return outcome

    def _process_died(self) -> ChildProcessError:
        self.close()
        what = "the process that writes checkpoints has died (out of memory?); a thread writes the next ones"
        return ChildProcessError(errno.ECHILD, what)


class Memory(NamedTuple):
    """Message to the writer process: map shared memory of `size` bytes, whose file descriptor is sent next."""

    size: int


class Job(NamedTuple):
    """Message to the writer process: write the checkpoint `save` as rank `rank` of `size` ranks.

    The tensors are in the shared memory and have the layout that the process has received most recently.
    """

    save: Save
    rank: int
    size: int


class ExchangeRequest(NamedTuple):
    """Message from the writer process: call `Peers.exchange` with these arguments and send back its result or error."""

    kind: Kind
    payload: bytes | list[bytes] | None
    error: Exception | None


class Relay(Peers):
    """Communication of a writer process with those of the other ranks, relayed by the training processes."""

    def __init__(self, connection: Connection, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._connection = connection

    def exchange(self, kind: Kind, payload: bytes | list[bytes] | None, error: Exception | None) -> Any:
        self._connection.send(ExchangeRequest(kind, payload, error))
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(connection: Connection, parent: int) -> None:
    """Runs the loop of the writer process: receives messages and writes checkpoints. Never returns.

    The process exits when the other end of `connection` is closed, or when the process with the id `parent` ends.
    """
    import torch

    try:
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork, and code that needs them waits forever
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # only the training process handles it: it may have to finish a save
        # No save continues after its run, since the next run would write to the same folder.
        signal_at_parents_end(signal.SIGKILL, parent)
        layout: Any = None
        memory: Any = None
        while True:
            message = connection.recv()
            if isinstance(message, Memory):
                handle = recv_handle(connection)
                memory = map_memory(handle, message.size)
                os.close(handle)
            elif isinstance(message, Job):
                connection.send(run_job(message, layout, memory, connection))
            else:
                layout = message
    except (EOFError, ConnectionError):  # the training process has ended
        pass
    except BaseException:  # the training process only sees that this process has died
        traceback.print_exc()
    finally:
        os._exit(0)


def run_job(job: Job, layout: StagedLayout, memory: Tensor, connection: Connection) -> Exception | None:
    """Writes the checkpoint of `job` in the writer process; returns the error, or None if no error occurred.

    Args:
        job: The request.
        layout: Layout of the tensors in `memory`.
        memory: Shared memory with the tensors.
        connection: Connection to the training process.
    """
    try:
        write_checkpoint(job.save, layout.planners(memory), Relay(connection, job.rank, job.size), staged=True)
    except Exception as error:
        return portable(error)
    return None


def map_memory(handle: int, size: int) -> Tensor:
    """Maps the open file `handle` of `size` bytes into memory, shared with other processes; returns a uint8 tensor."""
    import torch

    return torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)


def end_process(connection: Connection, pid: int, *, owner: int) -> None:
    """Kills the writer process `pid` and closes its connection.

    No effect unless this process has the id `owner`: a fork, such as a data loader worker, must not end the writer.
    """
    if os.getpid() != owner:
        return
    connection.close()
    with suppress(ProcessLookupError, ChildProcessError):  # it has ended and was waited for already
        os.kill(pid, signal.SIGKILL)  # a fork that lives on keeps its copy of the connection open
        os.waitpid(pid, 0)
