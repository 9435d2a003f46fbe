"""The best validation of a run so far: which checkpoint to keep for it, and when there is no hope for a better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from worldsmith.config.errors import UserError


class BestSoFar:
    """Judges each validation once, by one of its figures, so that a run that goes on judges as one that never stopped.

    A validation whose figure is not finite is none of the best. `step` is 0 as long as there was none.
    """

    def __init__(self, metric: str, mode: Literal["min", "max"]) -> None:
        self.metric, self.mode = metric, mode
        self.forget()

    def forget(self) -> None:
        self.value, self.step = math.nan, 0
        self.judged = 0
        """The steps before the last validation that was judged."""
        self.without = 0
        """Validations since the best one."""

    def judge(self, step: int, figures: Mapping[str, float]) -> bool:
        """Whether the weights after so many steps are the best so far. Raises UserError for a figure that is not there.

        False for a validation that was judged before.
        """
        if self.metric not in figures:
            there = ", ".join(figures)
            raise UserError(f"checkpoint.keep_best: '{self.metric}' is no figure of the validation; there are: {there}")
        if step <= self.judged:
            return False
        value, self.judged = figures[self.metric], step
        better = self.step == 0 or (value < self.value if self.mode == "min" else value > self.value)
        if not (better and math.isfinite(value)):
            self.without += 1
            return False
        self.value, self.step, self.without = value, step, 0
        return True

    def state_dict(self) -> dict[str, float]:
        """Under names that a best by another figure does not have."""
        kept = {"value": self.value, "step": self.step, "judged": self.judged, "without": self.without}
        return {f"best[{self.metric},{self.mode}].{name}": float(value) for name, value in kept.items()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Takes what `state_dict` gave; a state without its names leaves everything as it is."""
        value, step, judged, without = (state.get(name, now) for name, now in self.state_dict().items())
        self.value, self.step, self.judged, self.without = value, int(step), int(judged), int(without)
