"""Signals between the processes of a run: those that ask it to stop, and the one that tells of a parent's end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Sent by a scheduler, a terminal, a terminal that is closed, and a scheduler some time ahead."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends (to be exact, the thread that forked it)."""


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
    """Asks for SIGTERM at the end of torchrun, if that has started this process: its ranks save and stop without it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal_at_parents_end(signal.SIGTERM, os.getppid())
