"""A process that makes samples. It is deaf to signals to the job, and ends with the process that it works for."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic

from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.maker import Made, S, SampleMaker

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which a scheduler or a terminal asks all processes of a job to stop."""


class DeadWorkerError(Exception):
    """A worker has ended that should not have."""

    def __init__(self, pid: int, exit_code: int) -> None:
        self.signal = next((known for known in signal.Signals if known == -exit_code), None)
        how = f"was killed by {self.signal.name}" if self.signal else f"ended with exit code {exit_code}"
        super().__init__(f"loader worker {pid} {how}")


class Worker(Generic[S]):
    """Makes every `stride`-th of the positions from number `first` on, in order, and at most `ahead` of them unasked.

    It has a pipe of its own and shares no lock, so that its end at any moment is the end of its pipe and of nothing
    else. With `ahead` 1 a position that does not come is the one at which it died.
    """

    def __init__(self, maker: SampleMaker[S], positions: Iterable[int], first: int, stride: int, ahead: int) -> None:
        self.ahead = ahead
        # Linux forks: a worker is there in milliseconds, and it uses no thread pool that it inherited (one torch
        # thread, its own decoders, a tokenizer without threads). Elsewhere system libraries do not survive a fork.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._samples, sender = context.Pipe(duplex=False)
        arguments = (maker, positions, first, stride, ahead, sender, os.getpid())
        self._process = context.Process(target=work, args=arguments, daemon=True)
        try:
            with workers_deaf():
                self._process.start()
        except OSError as error:
            raise DataError(
                f"a loader worker cannot be started ({error.strerror or error}): the machine has no memory or no room "
                "for a further process; lower num_workers or prefetch_factor of the data loader"
            ) from error
        finally:
            sender.close()

    def receive(self) -> Made[S]:
        """Waits for the next sample. Raises DeadWorkerError, or what has gone wrong in the program that makes it."""
        try:
            made = self._samples.recv()
        except (EOFError, OSError):  # also in the midst of a sample
            raise DeadWorkerError(self._process.pid, self.end()) from None
        if isinstance(made, Exception):
            raise made
        return made  # type: ignore[no-any-return]

    def end(self) -> int:
        """Ends the process if it has not ended by itself; returns its exit code, negative for a signal."""
        self._process.kill()
        self._process.join()
        self._samples.close()
        return int(self._process.exitcode)


@contextmanager
def workers_deaf() -> Iterator[None]:
    """Worker processes that are forked meanwhile do not get those signals, from their first moment on.

    The run, which saves first, needs its workers until it ends them itself; its own signals wait for the end of this.
    """
    if sys.platform != "linux":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)
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
    """What the process does; a thread sends, so that the next sample is made while the pipe is full."""
    import torch

    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads stayed behind in the parent
    threading.Thread(target=exit_with, args=(parent,), daemon=True).start()
    unsent: SimpleQueue[Made[Any] | Exception] = SimpleQueue()
    free = threading.Semaphore(ahead)
    threading.Thread(target=send_all, args=(unsent, pipe, free), daemon=True).start()
    for position in islice(positions, first, None, stride):
        free.acquire()
        try:
            unsent.put(maker[position])
        except Exception as error:
            unsent.put(portable(error))
    for _ in range(ahead):  # until all is sent
        free.acquire()


def send_all(unsent: SimpleQueue[Any], pipe: Connection, free: threading.Semaphore) -> None:
    try:
        while True:
            pipe.send(unsent.get())
            free.release()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def portable(error: Exception) -> Exception:
    """The error, with the lines where it was raised, as something that arrives at the other end of a pipe."""
    where = traceback.format_exc()
    error.add_note(f"in a loader worker:\n{where}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"in a loader worker:\n{where}")
    return error


def exit_with(parent: int) -> None:
    """Ends this process when its parent asks for it, and within a second of the parent's death.

    That is also so after SIGKILL of the parent, and while a result is being sent. SIGTERM comes here alone, where its
    sender can be seen.
    """
    while os.getppid() == parent:
        if sys.platform != "linux":
            time.sleep(1.0)
            continue
        asked = signal.sigtimedwait([signal.SIGTERM], 1.0)
        if asked is not None and asked.si_pid == parent:
            os._exit(0)
    os._exit(1)
