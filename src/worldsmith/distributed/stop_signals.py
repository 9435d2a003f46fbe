"""Stop requests: a signal or a file stops a run at the next step boundary, after it has saved a checkpoint."""

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
    """Context manager that remembers the first stop signal or the stop file, for a run that stops at a step boundary.

    A second SIGINT raises KeyboardInterrupt; other later signals are ignored. Worker processes that are forked
    meanwhile ignore the signals: the run itself ends its workers. Only the main thread can catch signals; elsewhere
    signals are not handled.
    """

    def __init__(self, file: Path | None = None, *, notice: str = "") -> None:
        """Prepares the stop request.

        Args:
            file: Stop file, which counts like a signal as soon as it exists; None: no stop file.
            notice: Text printed to standard error at the first SIGINT; "": no text.
        """
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
        """Removes the stop file or folder, so that the next start of the run continues. An error is logged."""
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
    """Exits this process immediately with PREEMPTED because of the signal `number`."""
    if number == signal.SIGHUP:
        leave_terminal()
    with suppress(OSError):
        os.write(2, f"stopped by {signal.Signals(number).name} with no progress to save\n".encode())
    os._exit(PREEMPTED)


def leave_terminal() -> None:
    """Redirects stdout and stderr to /dev/null if they are a terminal, since writing fails after SIGHUP."""
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
