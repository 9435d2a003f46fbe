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
"""Exit code (EX_TEMPFAIL) of a run that was stopped by a request and has saved: the same command resumes it."""
STOP_NOTICE = "Stopping after this step, saving a checkpoint.\nPress Ctrl-C again to quit without saving."
"""Text that a run prints on Ctrl-C. Its lines are short, because the signal handler cannot wrap them."""
SAME_PRESS = 1.0
"""Seconds within which a second SIGINT is regarded as the first one: one Ctrl-C can send two, since the terminal sends
SIGINT to all processes and torchrun forwards it to its own."""


class StopSignals:
    """Context manager that records the first stop request (a signal or the stop file), for a run to check after a step.

    After the first signal, a SIGINT raises KeyboardInterrupt, and the other signals of `STOP_SIGNALS` are ignored.
    Processes that are forked within the block ignore the signals, since the run ends its workers itself. Outside of the
    main thread, no signal is handled.
    """

    def __init__(self, file: Path | None = None, *, notice: str = "") -> None:
        """Stores the stop file and the notice; signals are handled only within the block of the context manager.

        Args:
            file: Stop file, whose existence is a stop request like a signal; None: no stop file.
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
        """Source of the stop request, such as "SIGTERM" or "the file …/stop"; None if no stop is requested."""
        if self.received is None and self.file is not None and self.file.exists():
            return f"the file {self.file}"
        return self.received

    def remove_stop_file(self) -> None:
        """Removes the stop file, so that the run does not stop again when it is resumed.

        If the file cannot be removed, this is logged and not raised.
        """
        if self.file is None or not self.file.exists():
            return
        try:
            (self.file.rmdir if self.file.is_dir() else self.file.unlink)()
        except OSError as error:
            if self.file.exists():
                logger.warning(
                    "%s cannot be removed, so the next start would stop as well; remove it: %s",
                    self.file,
                    error.strerror,
                )

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return
        if number == signal.SIGHUP:
            leave_terminal()
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, time.monotonic()
            if number == signal.SIGINT and self.notice:
                with suppress(OSError):  # not by the logger, which the signal may have interrupted
                    os.write(2, f"\n{self.notice}\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_PRESS:
            raise KeyboardInterrupt("a second SIGINT")


@contextmanager
def exit_when_asked() -> Iterator[None]:
    """Context manager for the start of a run: a stop signal exits the process at once with the exit code PREEMPTED.

    No progress is saved and no clean-up code runs, since such code would wait for ranks that may have exited, and could
    crash during an import.
    """
    with acting_at_once(leave):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # `worldsmith launch` starts the process with a block
        yield


def leave(number: int) -> None:
    """Prints that the stop signal `number` was received, and exits at once with the exit code PREEMPTED."""
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
