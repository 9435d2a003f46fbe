"""What a loader's worker process does besides making samples."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def start_worker(parent: int, worker: int) -> None:
    """Set-up of a worker process.

    A scheduler or a terminal asks all processes of a job to stop; the run, which saves first, needs its workers until
    it ends them itself.
    """
    import torch

    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for `exit_with` alone, which sees who sent it
    threading.Thread(target=exit_with, args=(parent,), daemon=True).start()


def exit_with(parent: int) -> None:
    """Ends this process when its parent asks for it, and within a second of the parent's death.

    That is also so after SIGKILL of the parent, and while a result is being sent.
    """
    while os.getppid() == parent:
        if sys.platform != "linux":
            time.sleep(1.0)
            continue
        asked = signal.sigtimedwait([signal.SIGTERM], 1.0)
        if asked is not None and asked.si_pid == parent:
            os._exit(0)
    os._exit(1)
