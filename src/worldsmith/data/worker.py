"""The processes of a loader: what they do besides making samples, and when the training hears of their death."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which a scheduler or a terminal asks all processes of a job to stop."""

T = TypeVar("T")


class Deaths:
    """Holds back the news that a worker has died until the next sample is asked for.

    PyTorch raises it from a handler of SIGCHLD, in whatever line the training is: within a step of the optimizer, or a
    save. While a sample is waited for it is raised at once, as half a message may be in the pipe.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._raise: Any = None
        self._former: Any = None

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Around what makes PyTorch set its handler; it does that once, and in the main thread only."""
        former = signal.getsignal(signal.SIGCHLD)
        yield
        handler = signal.getsignal(signal.SIGCHLD)
        if handler is not former:
            self._raise, self._former = handler, former
            signal.signal(signal.SIGCHLD, self._receive)

    def next(self, stream: Iterator[T]) -> T:
        """The next item. Raises PyTorch's RuntimeError when a worker of any loader has died, now or before."""
        if self._raise is None or threading.current_thread() is not threading.main_thread():
            return next(stream)
        self._waiting = True
        try:
            self._raise(signal.SIGCHLD, None)
            return next(stream)
        finally:
            self._waiting = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            self._raise(number, frame)
        elif callable(self._former):
            self._former(number, frame)


DEATHS = Deaths()
"""Of this process: there is one handler of a signal."""


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


def start_worker(parent: int, worker: int) -> None:
    """Set-up of a worker process, forked with `workers_deaf`."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=exit_with, args=(parent,), daemon=True).start()


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
