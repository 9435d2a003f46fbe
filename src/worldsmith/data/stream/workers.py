"""Worker processes that build the samples of a loader, in order. A worker that dies is replaced."""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import reduction
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic

from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.positions import Positions
from worldsmith.data.stream.sample_maker import S, SampleMaker, SampleResult

log = logging.getLogger(__name__)

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
"""Signals of a crash in the process itself. SIGKILL is not included: it comes from outside, e.g. from the OOM
killer."""
ATTEMPTS = 5
"""Number of worker deaths at one sample, by signals other than `CRASHES`, after which the sample is skipped."""
PAUSE = 1.0
"""Seconds to wait before the third and later attempts, in which other processes may release memory."""
SHARED_BYTES = 1 << 16
"""Size in bytes from which the arrays of a sample are sent in shared memory, and not through the pipe."""
ALIGNMENT = 64
RECEIVED = b"."
"""Message to a worker for each of its samples that this process has received."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which a scheduler or a terminal stops all processes of a job."""


def fetch(
    maker: SampleMaker[S], positions: Positions, *, workers: int, prefetch: int, counts: Counter[str]
) -> Iterator[SampleResult[S]]:
    """Yields the result of `maker` for each stream position, in order, built in worker processes.

    A worker that dies is replaced by a worker that prefetches only one sample; no sample is lost or changed. If the
    replacement crashes at a sample, that sample is rejected as "crashes_worker".

    Args:
        maker: Builds the sample of a stream position.
        positions: Stream positions of this rank.
        workers: Number of worker processes; 0: samples are built in this process.
        prefetch: Number of samples that each worker builds in advance.
        counts: Counters of the loader; "workers_died" is increased in place at each death of a worker.

    Raises:
        DataError: If a worker cannot be started.
    """
    if not workers:
        yield from map(maker.__getitem__, positions)
        return
    team: list[Worker[S]] = []
    try:
        team.extend(Worker(maker, positions, first, workers, prefetch) for first in range(workers))
        for number, position in enumerate(positions):
            place, attempts = number % workers, 0
            made: SampleResult[S] | None = None
            while made is None:
                try:
                    made = team[place].receive()
                except DeadWorkerError as death:
                    attempts += 1
                    counts["workers_died"] += 1
                    known = team[place].ahead == 1 and (death.signal in CRASHES or attempts >= ATTEMPTS)
                    times = f" ({attempts} workers have died at this sample)" if attempts > 1 else ""
                    detail = f"{death} while it read this sample{times}"
                    rejection = maker.reject(position, "crashes_worker", detail)
                    log_death(death, rejection.key, counts["workers_died"], left_out=known)
                    if known:
                        made = SampleResult(rejection)
                    elif attempts > 1:
                        time.sleep(PAUSE)
                    following = number + workers if known else number
                    team[place] = Worker(maker, positions, following, workers, ahead=1)
            yield made
    finally:
        for worker in team:
            worker.end()


def log_death(death: DeadWorkerError, key: str, number: int, *, left_out: bool) -> None:
    """Logs that a worker has died, if it is the 1st, 2nd, 3rd, 10th, 100th, 1000th, … death of the run.

    Args:
        death: Exception about the worker.
        key: Key of the sample that the worker was building.
        number: Number of deaths so far, including this one.
        left_out: Whether the sample is skipped because of the death.
    """
    if number > 3 and str(number).strip("0") != "1":
        return
    then = "that sample is skipped" if left_out else "a new worker continues with that sample"
    memory = "; if memory is short, lower num_workers or prefetch_factor of the data loader"
    advice = memory if death.signal is signal.SIGKILL else ""
    log.warning("[E104] %s while it was processing %s; %s (death %d)%s", death, key, then, number, advice)


class DeadWorkerError(Exception):
    """Error for a worker process that ended unexpectedly.

    Args:
        pid: Process ID of the worker.
        exit_code: Exit code, or the negative number of the signal that killed the worker.
    """

    def __init__(self, pid: int, exit_code: int) -> None:
        self.signal = next((known for known in signal.Signals if known == -exit_code), None)
        how = f"was killed by {self.signal.name}" if self.signal else f"ended with exit code {exit_code}"
        super().__init__(f"loader worker {pid} {how}")


class Worker(Generic[S]):
    """Worker process that builds the samples at the items `first`, `first + stride`, … of `positions`, in order.

    Each worker has its own pipe and shares no lock, so its death closes that pipe and affects no other worker.

    Args:
        maker: Builds the sample of a stream position.
        positions: Stream positions of this rank.
        first: Index in `positions` of the first sample of this worker.
        stride: Number of workers.
        ahead: Max number of samples that are built in advance. With 1, it is known which sample a dead worker was
            building or sending: the first one that was not received.
    """

    def __init__(self, maker: SampleMaker[S], positions: Iterable[int], first: int, stride: int, ahead: int) -> None:
        self.ahead = ahead
        # Linux forks: a worker starts in milliseconds, and it uses no inherited thread pool (one torch thread, its own
        # decoders, a tokenizer without threads). On other systems, system libraries do not survive a fork.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._samples, sender = context.Pipe()  # a socket, which can also send file descriptors
        arguments = (maker, positions, first, stride, ahead, sender, os.getpid())
        self._process = context.Process(target=work, args=arguments, daemon=True)
        try:
            with signals_blocked():
                self._process.start()
        except OSError as error:
            raise DataError(
                f"[E105] a loader worker cannot be started ({error.strerror or error}): memory or the process limit "
                "of this machine is exhausted; lower num_workers or prefetch_factor of the data loader"
            ) from error
        finally:
            sender.close()

    def receive(self) -> SampleResult[S]:
        """Waits for the next result and returns it.

        Raises:
            DeadWorkerError: If the process has ended.
            Exception: Any exception of `maker`, from the process.
        """
        try:
            made = receive_object(self._samples)
        except (EOFError, OSError):  # also while a sample is being sent
            raise DeadWorkerError(self._process.pid, self.end()) from None
        with suppress(OSError):  # the process has ended: the next call will raise
            self._samples.send_bytes(RECEIVED)
        if isinstance(made, Exception):
            raise made
        return made  # type: ignore[no-any-return]

    def end(self) -> int:
        """Kills the process if it still runs, and returns its exit code, or the negative number of its signal."""
        self._process.kill()
        self._process.join()
        self._samples.close()
        return int(self._process.exitcode)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Context manager that blocks `STOP_SIGNALS` in this thread; processes forked within the block keep them blocked.

    A run that is stopped saves a checkpoint first, and needs its workers until it ends them itself. Signals to this
    process are delivered when the block ends.
    """
    if sys.platform != "linux":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def work(
    maker: SampleMaker[Any],
    positions: Iterable[int],
    first: int,
    stride: int,
    ahead: int,
    pipe: Connection,
    parent: int,
) -> None:
    """Main function of a worker process: builds samples and sends them to the parent process.

    A thread sends the samples, so the next sample is built while the pipe is full. At most `ahead` samples are not
    received yet.

    Args:
        maker: Builds the sample of a stream position.
        positions: Stream positions of this rank.
        first: Index in `positions` of the first sample of this worker.
        stride: Number of workers.
        ahead: Max number of samples that are built but not received.
        pipe: Pipe to the parent process.
        parent: Process ID of the parent process.
    """
    import torch

    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the tokenizer's threads exist only in the parent
    threading.Thread(target=exit_with, args=(parent,), daemon=True).start()
    unsent: SimpleQueue[SampleResult[Any] | Exception] = SimpleQueue()
    free = threading.Semaphore(ahead)
    threading.Thread(target=send_all, args=(unsent, pipe, parent), daemon=True).start()
    threading.Thread(target=count_received, args=(pipe, free), daemon=True).start()
    for position in islice(positions, first, None, stride):
        free.acquire()
        try:
            unsent.put(maker[position])
        except Exception as error:
            unsent.put(portable(error))
    for _ in range(ahead):  # until all is received
        free.acquire()


def send_all(unsent: SimpleQueue[Any], pipe: Connection, receiver: int) -> None:
    try:
        while True:
            send_object(pipe, unsent.get(), receiver)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def count_received(pipe: Connection, free: threading.Semaphore) -> None:
    """Increases `free` by 1 for each sample that the parent process has received."""
    with suppress(EOFError, OSError):
        while pipe.recv_bytes() == RECEIVED:
            free.release()


def send_object(pipe: Connection, value: Any, receiver: int) -> None:
    """Sends an object through a pipe; the contents of large arrays are in an anonymous file in memory.

    The receiver maps that file and copies nothing. The limit on /dev/shm of a container does not apply to it.

    Args:
        pipe: Pipe that is a socket.
        value: Object to pickle.
        receiver: Process ID of the receiver.
    """
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    views = [array.raw() for array in arrays]
    starts = [0]
    for view in views:
        starts.append(starts[-1] + -(-view.nbytes // ALIGNMENT) * ALIGNMENT)
    file = memory_file() if starts[-1] >= SHARED_BYTES else None
    if file is None:
        pipe.send((pickled, [bytearray(view) for view in views]))
        return
    try:
        os.ftruncate(file, starts[-1])
        for start, view in zip(starts, views):
            written = 0
            while written < view.nbytes:
                written += os.pwrite(file, view[written:], start + written)
        pipe.send((pickled, [(start, view.nbytes) for start, view in zip(starts, views)]))
        reduction.send_handle(pipe, file, receiver)
    finally:
        os.close(file)


def memory_file() -> int | None:
    """Returns the descriptor of a new anonymous file in memory; None if this system has no such files."""
    try:
        return os.memfd_create("worldsmith-sample")
    except (AttributeError, OSError):
        return None


def receive_object(pipe: Connection) -> Any:
    """Receives an object that `send_object` has sent; its arrays are writable.

    Raises:
        EOFError: If the sender has ended.
        OSError: If the sender has ended while it was sending.
    """
    pickled, arrays = pipe.recv()
    if arrays and isinstance(arrays[0], tuple):
        file = reduction.recv_handle(pipe)
        try:
            mapped = mmap.mmap(file, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(file)
        arrays = [memoryview(mapped)[start : start + size] for start, size in arrays]
    return pickle.loads(pickled, buffers=arrays)


def portable(error: Exception) -> Exception:
    """Returns `error` with its traceback as a note; a RuntimeError with its traceback if it cannot be pickled."""
    where = traceback.format_exc()
    error.add_note(f"in a loader worker:\n{where}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"in a loader worker:\n{where}")
    return error


def exit_with(parent: int) -> None:
    """Waits, in a thread of a worker, and ends the process when its parent sends SIGTERM or has ended.

    SIGTERM is blocked in the other threads of the worker, so that this thread gets the signal with its sender.

    Args:
        parent: Process ID of the parent process.
    """
    while os.getppid() == parent:
        if sys.platform != "linux":
            time.sleep(1.0)
            continue
        asked = signal.sigtimedwait([signal.SIGTERM], 1.0)
        if asked is not None and asked.si_pid == parent:
            os._exit(0)
    os._exit(1)
