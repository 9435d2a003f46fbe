"""`Throughput`: speed of a run over recent steps; `Activity`: current activity of a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Activity:
    """Current activity of a run, such as training, validation or saving."""

    name: str
    fraction: float | None = None
    """Completed fraction, from 0 to 1; None if it is not known."""


class Throughput:
    """Tokens and steps per second over the last steps, without the first step, which includes warm-up.

    Args:
        window: Number of recent steps that are averaged.
        clock: Returns the time in seconds.
    """

    def __init__(self, *, window: int = 50, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.recent: deque[tuple[float, int, bool]] = deque(maxlen=window)
        """(seconds, tokens, whether the step included one-time work such as compilation) of each recent step."""
        self.last: float | None = None

    def step(self, tokens: int, *, unusual: bool = False) -> None:
        """Records that an optimizer step has ended now.

        Args:
            tokens: Tokens of the step over all ranks.
            unusual: Whether the step included one-time work, such as compilation.
        """
        now = self.clock()
        if self.last is not None:
            self.recent.append((now - self.last, tokens, unusual))
        self.last = now

    def leave_out(self, seconds: float) -> None:
        """Excludes `seconds` from the time of the current step, because they were spent on validation or the like."""
        if self.last is not None:
            self.last += seconds

    @property
    def seconds_per_step(self) -> float | None:
        """Mean seconds of the recent steps without one-time work; None before the first such step.

        If all of the last `window` steps included one-time work, the mean is over all of these.
        """
        usual = [seconds for seconds, _, unusual in self.recent if not unusual]
        if not usual and len(self.recent) == self.recent.maxlen:
            usual = [seconds for seconds, *_ in self.recent]
        return sum(usual) / len(usual) if usual else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of recent steps; None before two steps are completed."""
        seconds = sum(seconds for seconds, *_ in self.recent)
        return sum(tokens for _, tokens, _ in self.recent) / seconds if seconds > 0 else None

    def remaining_seconds(self, steps: int) -> float | None:
        """Returns the expected seconds for `steps` more steps; None while `seconds_per_step` is None."""
        pace = self.seconds_per_step
        return None if pace is None else pace * steps
