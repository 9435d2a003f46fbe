"""What a loader's worker process does besides making samples."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which a scheduler or a terminal asks all processes of a job to stop."""


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
