"""Signals between the processes of a run: stop requests, and the signal at the end of a parent process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from worldsmith.distributed.launcher_messages import launcher_pid, max_world_size

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that request a process to stop. SIGTERM: from a scheduler; SIGINT: Ctrl-C; SIGHUP: the terminal was closed;
SIGUSR1: from a scheduler some time before it stops the job."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2) that sets the signal sent to a process when its parent (the forking thread) ends."""


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Context manager that installs a signal handler for `STOP_SIGNALS`; an ignored SIGHUP (nohup) stays ignored.

    It has no effect outside of the main thread, since only the main thread can install signal handlers.

    Args:
        handler: Function of the signal number and the current stack frame, as for `signal.signal`.
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
    """Context manager that handles `STOP_SIGNALS` in a separate thread, even while the main thread is blocked.

    Python runs signal handlers only when the main thread executes Python code. A main thread that waits in a library,
    for example for another machine, would never run them. Outside of the main thread, this function has no effect.

    Args:
        act: Called with the number of each stop signal that is received.
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
    """Makes the kernel send a signal to this process when the parent process ends; now if the parent has already ended.

    Forked processes do not inherit the setting. It has no effect on systems other than Linux.

    Args:
        number: Signal number.
        parent: Expected process ID of the parent.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def follow_launcher() -> None:
    """Makes the kernel send SIGTERM to this process when its launcher ends, so that the run saves and stops.

    The launcher is `worldsmith launch` or torchrun. If `worldsmith launch` has ended before this call, SIGTERM is sent
    now. No effect without a launcher. With `--nnodes MIN:MAX` the signal is SIGKILL: a save and stop would be a stop of
    the whole run, which continues with the processes of the other launchers instead.
    """
    parent = launcher_pid()
    number = signal.SIGTERM if max_world_size() is None else signal.SIGKILL
    if parent is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        signal_at_parents_end(number, os.getppid() if parent is None else parent)
