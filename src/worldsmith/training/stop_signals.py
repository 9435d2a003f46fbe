"""A run is asked to stop, by a signal or by a file; it does at the next step boundary, after it has saved."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

PREEMPTED = 75
"""Exit code of a run that was asked to stop and has saved: start the same command again to go on (EX_TEMPFAIL)."""
SAME_PRESS = 1.0
"""Seconds within which a second SIGINT is the same one: a terminal sends it to all processes, and torchrun again."""


class StopSignals:
    """While active, remembers the first signal. A second SIGINT interrupts at once; others are not needed and ignored.

    Worker processes that are forked meanwhile ignore SIGINT (a terminal sends it to them too) and die by SIGTERM.
    Only the main thread can catch signals; elsewhere this does nothing. `file`, if there is one, counts like a signal.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.received: str | None = None
        self._since = 0.0
        self._owner = os.getpid()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in self.SIGNALS:
            try:
                self._previous[number] = signal.signal(number, self._receive)
            except ValueError:  # not the main thread
                break
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> str | None:
        """What asked for a stop; None when nothing did."""
        if self.received is None and self.file is not None and self.file.exists():
            return f"the file {self.file}"
        return self.received

    def honour(self) -> None:
        """Removes the file: the next start of the run is to go on."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_PRESS:
            raise KeyboardInterrupt("a second SIGINT")
