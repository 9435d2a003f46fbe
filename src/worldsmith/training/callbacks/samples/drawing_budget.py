"""When samples are generated during training so that they cost no more than a fraction of the run's time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_DRAWINGS = 50
"""Max number of drawings in a run, however cheap they are."""
BEFORE_THE_END = 0.8
"""Part of the fraction that drawings before the last step may use, since steps become faster than was expected."""
SMALL_DRAWING = 5.0
"""A drawing after the last step that takes at most this many seconds may exceed the fraction, as in a short run."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of rank 0 after a step."""

    prompts: int
    """Number of prompts to draw now; 0: none."""
    next_check: int
    """The next step at which rank 0 decides."""


class DrawingBudget:
    """Decides on rank 0 after which steps samples are drawn, by measured times.

    Before the last step, the time spent on drawings is at most `fraction` of the elapsed time, including the next
    drawing, and enough of the expected total is kept for the drawing after the last step.
    """

    def __init__(
        self,
        fraction: float,
        *,
        first_step: int,
        last_step: int,
        steps_per_prompt: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts the clock of the run.

        Args:
            fraction: max fraction of the run's time, from 0 to 1.
            first_step: steps that were done before this process started.
            last_step: steps of the complete run.
            steps_per_prompt: estimated cost of a prompt in training steps, used until a drawing has been measured.
        """
        self.fraction = fraction
        self.first_step, self.last_step = first_step, last_step
        self.steps_per_prompt = steps_per_prompt
        self.clock = clock
        self.start = clock()
        self.spent = 0.0
        """Seconds spent on drawings."""
        self.seconds_per_prompt: float | None = None
        self.last_drawing = first_step

    def add(self, step: int, prompts: int, seconds: float, *, once: float = 0.0) -> None:
        """Records a drawing of `prompts` prompts after `step` steps, of whose seconds further ones save `once`."""
        self.spent += seconds
        self.seconds_per_prompt = (seconds - once) / prompts
        self.last_drawing = step

    def decide(self, step: int, prompts: int) -> Decision:
        """Whether to draw after `step` steps, where a complete drawing has `prompts` prompts."""
        elapsed = self.clock() - self.start
        per_step = (elapsed - self.spent) / max(1, step - self.first_step)
        cost = self.seconds_per_prompt
        if cost is None:
            cost = self.steps_per_prompt * per_step
        if step >= self.last_step:
            return Decision(self.affordable(cost, prompts, elapsed), step)
        complete = prompts * cost
        fraction = BEFORE_THE_END * self.fraction
        due = (self.spent + complete) / fraction - complete  # elapsed seconds from which it is affordable
        distance = math.ceil(self.last_step / MAX_DRAWINGS)
        is_early = step - self.last_drawing < distance
        total = elapsed + (self.last_step - step) * per_step
        if self.spent + 2 * complete > fraction * total:  # which leaves nothing for the last step
            return Decision(0, min(self.last_step, step + max(1, (self.last_step - step) // 2)))
        if elapsed >= due and not is_early:
            return Decision(prompts, min(self.last_step, step + distance))
        wait = math.ceil(max(0.0, due - elapsed) / max(per_step, 1e-9) / 2)  # again halfway, since speeds change
        wait = max(wait, self.last_drawing + distance - step, 1)
        return Decision(0, min(self.last_step, step + wait))

    def affordable(self, cost: float, prompts: int, elapsed: float) -> int:
        """Number of prompts after the last step, at most `prompts`."""
        room = (self.fraction * elapsed - self.spent) / (1 - self.fraction) if self.fraction < 1 else math.inf
        for count in range(prompts, 0, -1):
            if count * cost <= room:
                return count
        return 1 if cost <= SMALL_DRAWING else 0
