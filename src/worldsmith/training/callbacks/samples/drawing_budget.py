"""When samples are generated during training, so that they cost at most a fraction of the run's time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_DRAWINGS = 50
"""Max number of sample generations in a run, however cheap they are."""
BEFORE_THE_END = 0.8
"""Fraction of the time budget for generations before the last step; the rest is a reserve in case steps get faster."""
FIRST_BETWEEN = 0.3
"""Fraction of the steps after which the first intermediate generation happens, if the complete run can afford it."""
SMALL_DRAWING = 5.0
"""A generation after the last step may exceed the time fraction if it takes at most this many seconds: with one prompt
in a short run, with all prompts in a resumed run, where only the time since the resume is known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of rank 0 after a step: how many samples to generate now, and when to decide again."""

    prompts: int
    """Number of prompts to generate now; 0: none."""
    next_check: int
    """The next step at which rank 0 decides."""


class DrawingBudget:
    """Decides on rank 0 after which steps samples are generated, based on measured times.

    A "drawing" is one generation of samples. The first intermediate drawing happens after `FIRST_BETWEEN` of the steps
    at the latest, with fewer prompts if a complete one does not fit into `fraction` of the expected total time. Each
    later one happens when the time spent on drawings, including the next one, is at most `fraction` of the elapsed
    time. Enough of the expected total time is reserved for the drawing after the last step.

    Args:
        fraction: Max fraction of the run's time, from 0 to 1.
        first_step: Steps that were completed before this process started.
        last_step: Steps of the complete run.
        steps_per_prompt: Estimated cost of a prompt in training steps, used until a drawing has been measured.
        clock: Returns the time in seconds.
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
        """Starts the clock of the run."""
        self.fraction = fraction
        self.first_step, self.last_step = first_step, last_step
        self.steps_per_prompt = steps_per_prompt
        self.clock = clock
        self.start = clock()
        self.spent = 0.0
        """Seconds spent on sample generation."""
        self.seconds_per_prompt: float | None = None
        self.last_drawing = first_step

    def add(self, step: int, prompts: int, seconds: float, *, once: float = 0.0) -> None:
        """Records a drawing, which is one generation of samples.

        Args:
            step: Number of completed steps.
            prompts: Number of prompts.
            seconds: Duration.
            once: Seconds of the duration that later drawings do not need, such as loading.
        """
        self.spent += seconds
        self.seconds_per_prompt = (seconds - once) / prompts
        self.last_drawing = step

    def decide(self, step: int, prompts: int) -> Decision:
        """Decides for how many prompts samples are generated after a step, and at which step to decide again.

        Args:
            step: Number of completed steps.
            prompts: Number of prompts of a complete drawing.
        """
        elapsed = self.clock() - self.start
        per_step = (elapsed - self.spent) / max(1, step - self.first_step)
        cost = self.seconds_per_prompt
        if cost is None:
            cost = self.steps_per_prompt * per_step
        if step >= self.last_step:
            return Decision(self.affordable(cost, prompts, elapsed), step)
        distance = math.ceil(self.last_step / MAX_DRAWINGS)
        is_early = step - self.last_drawing < distance
        total = elapsed + (self.last_step - step) * per_step
        room = self.fraction * total - self.spent
        count = prompts if room >= 2 * prompts * cost else 0  # the drawing after the last step costs as much again
        is_first = self.last_drawing == self.first_step
        first_between = first_drawing_between(self.first_step, self.last_step)
        if is_first:
            count = min(prompts, int(max(room - prompts * cost, room / 2) / max(cost, 1e-9)))
        if count < 1:
            halfway = step + max(1, (self.last_step - step) // 2)
            return Decision(0, first_between if is_first and step < first_between else min(self.last_step, halfway))
        fraction = BEFORE_THE_END * self.fraction
        due = (self.spent + count * cost) / fraction - count * cost  # elapsed seconds from which it is affordable
        if (elapsed >= due or (is_first and step >= first_between)) and not is_early:
            return Decision(count, min(self.last_step, step + distance))
        wait = math.ceil(max(0.0, due - elapsed) / max(per_step, 1e-9) / 2)  # again halfway, since speeds change
        if is_first:
            wait = min(wait, first_between - step)
        wait = max(wait, self.last_drawing + distance - step, 1)
        return Decision(0, min(self.last_step, step + wait))

    def affordable(self, cost: float, prompts: int, elapsed: float) -> int:
        """Returns the number of prompts that the time budget allows for the drawing after the last step; 0: no drawing.

        Args:
            cost: Seconds per prompt.
            prompts: Max number of prompts.
            elapsed: Seconds since the start of the run's clock.
        """
        room = (self.fraction * elapsed - self.spent) / (1 - self.fraction) if self.fraction < 1 else math.inf
        if self.first_step:
            room = max(room, SMALL_DRAWING)
        for count in range(prompts, 0, -1):
            if count * cost <= room:
                return count
        return 1 if cost <= SMALL_DRAWING else 0


def first_drawing_between(first_step: int, last_step: int) -> int:
    """Returns the step after which samples are generated at the latest for the first time during training.

    Args:
        first_step: Steps that were completed before this process started.
        last_step: Steps of the complete run.
    """
    return first_step + math.ceil(FIRST_BETWEEN * (last_step - first_step))
