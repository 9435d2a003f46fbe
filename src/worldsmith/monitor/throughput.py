"""How fast a run is, over its recent steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Throughput:
    """Tokens and steps per second over the last `window` steps; the first step, which warms up, is left out."""

    def __init__(self, *, window: int = 50, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.marks: deque[tuple[float, int]] = deque(maxlen=window + 1)
        self.tokens = 0

    def step(self, tokens: int) -> None:
        """Call after each optimizer step with the tokens of its packs, over all ranks."""
        self.tokens += tokens
        self.marks.append((self.clock(), self.tokens))

    @property
    def seconds_per_step(self) -> float | None:
        """None until two steps are done."""
        if len(self.marks) < 2:
            return None
        return (self.marks[-1][0] - self.marks[0][0]) / (len(self.marks) - 1)

    @property
    def tokens_per_second(self) -> float | None:
        """None until two steps are done."""
        if len(self.marks) < 2:
            return None
        seconds = self.marks[-1][0] - self.marks[0][0]
        return (self.marks[-1][1] - self.marks[0][1]) / seconds if seconds > 0 else None

    def remaining_seconds(self, steps: int) -> float | None:
        """How long so many more steps take; None until two steps are done."""
        pace = self.seconds_per_step
        return None if pace is None else pace * steps
