"""A run is asked to stop, by a signal or by a file; it does at the next step boundary, after it has saved."""

from __future__ import annotations

import logging
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from worldsmith.distributed.process_signals import STOP_SIGNALS, acting_at_once, handling

logger = logging.getLogger(__name__)

PREEMPTED = 75
"""Exit code of a run that was asked to stop and has saved (EX_TEMPFAIL): start the same command again to resume it."""
STOP_NOTICE = "Stopping after this step, saving a checkpoint.\nPress Ctrl-C again to quit without saving."
"""Printed by a run on Ctrl-C; short lines, because the signal handler cannot wrap them."""
SAME_PRESS = 1.0
"""Seconds within which a second SIGINT counts as the same one: a terminal sends it to all processes, and torchrun
repeats it."""


class StopSignals:
    """While active, remembers the first signal. A second SIGINT interrupts at once; others are not needed and ignored.

    Worker processes that are forked meanwhile ignore them: who asks the whole job asks them too, and the run ends them.
    Only the main thread can catch signals; elsewhere this does nothing. `file`, if there is one, counts like a signal.
    """

    def __init__(self, file: Path | None = None, *, notice: str = "") -> None:
        """Prepares the stop request. `file`: stop file; `notice`: text printed at the first SIGINT."""
        self.file = file
        self.notice = notice
        self.received: str | None = None
        self._since = 0.0
        self._owner = os.getpid()
        self._handling = handling(self._receive)

    def __enter__(self) -> StopSignals:
        self._handling.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handling.__exit__(None, None, None)

    @property
    def asked(self) -> str | None:
        """Source of the stop request, such as a signal or the stop file; None without a request."""
        if self.received is None and self.file is not None and self.file.exists():
            return f"the file {self.file}"
        return self.received

    def honour(self) -> None:
        """Removes the file, or folder: the next start of the run is to go on. One that cannot be is said."""
        if self.file is None or not self.file.exists():
            return
        try:
            (self.file.rmdir if self.file.is_dir() else self.file.unlink)()
        except OSError as error:
            if self.file.exists():
                logger.warning("remove %s, or the next start stops as well: %s", self.file, error.strerror)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return
        if number == signal.SIGHUP:
            leave_terminal()
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, time.monotonic()
            if number == signal.SIGINT and self.notice:
                with suppress(OSError):  # not by the log, in the middle of whose work the signal may have come
                    os.write(2, f"\n{self.notice}\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_PRESS:
            raise KeyboardInterrupt("a second SIGINT")


@contextmanager
def exit_when_asked() -> Iterator[None]:
    """Context manager for the part of a run without anything to save: a signal exits at once, with PREEMPTED.

    No clean-up runs, since it would wait for ranks that may have exited, and could crash during an import.
    """

    with acting_at_once(leave):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # which the launcher held back until now
        yield


def leave(number: int) -> None:
    """Ends this process because of a signal, with nothing to save."""
    if number == signal.SIGHUP:
        leave_terminal()
    with suppress(OSError):
        os.write(2, f"stopped by {signal.Signals(number).name} with nothing to save\n".encode())
    os._exit(PREEMPTED)


def leave_terminal() -> None:
    """Lets standard output and errors go nowhere if they are a terminal, which is gone after SIGHUP: writing fails."""
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
