"""SIGTERM and SIGINT ask a run to stop at the next step boundary, after it has saved."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

PREEMPTED = 75
"""Exit code of a run that was asked to stop and has saved: start the same command again to go on (EX_TEMPFAIL)."""


class StopSignals:
    """While active, remembers the first signal; the second one interrupts at once.

    Worker processes that are forked meanwhile ignore SIGINT (a terminal sends it to them too) and die by SIGTERM.
    Only the main thread can catch signals; elsewhere this does nothing.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received: str | None = None
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

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.received is not None:
            raise KeyboardInterrupt(f"second signal ({signal.Signals(number).name})")
        self.received = signal.Signals(number).name
