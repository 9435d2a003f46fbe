"""Signals between the processes of a run: those that ask it to stop, and the one that tells of a parent's end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from worldsmith.distributed.launch_desk import launcher_pid

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a process to stop: from a scheduler, Ctrl-C, a closed terminal, and a scheduler some time in
advance."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2) that sets the signal sent to a process when its parent (the forking thread) ends."""


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Calls `handler` for each signal that asks for a stop; a SIGHUP that is ignored (nohup) stays ignored.

    Only the main thread can do that; elsewhere nothing is handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [number for number in STOP_SIGNALS if not (ignored and number == signal.SIGHUP)]
    watcher = signal.set_wakeup_fd(-1)  # of `acting_at_once`, around this
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(watcher)


@contextmanager
def acting_at_once(act: Callable[[int], None]) -> Iterator[None]:
    """Calls `act` for each of these signals from a thread of its own.

    Python calls a handler when the main thread gets back to Python code; one that waits in a library, such as for
    another machine, never does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)

    def watch() -> None:
        while number := os.read(read, 1)[0]:
            if number in STOP_SIGNALS:
                act(number)

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    with handling(lambda number, frame: None):
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            os.write(write, b"\0")  # not by closing it, which a fork of this process would keep open
            watcher.join()
            os.close(read)
            os.close(write)


def signal_at_parents_end(number: int, parent: int) -> None:
    """Lets the kernel send this process a signal when its parent ends, at once if `parent` is gone already.

    Processes that this one forks do not inherit that. Only Linux can do it; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def follow_launcher() -> None:
    """Asks for SIGTERM at the end of the launcher, or of torchrun: their ranks save and stop without them.

    A launcher has said who it is, so that its end is noticed also when it came before this.
    """
    parent = launcher_pid()
    if parent is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        signal_at_parents_end(signal.SIGTERM, os.getppid() if parent is None else parent)
