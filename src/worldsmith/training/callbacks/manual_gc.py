"""Garbage collection at chosen steps, and at no other time."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Annotated

from worldsmith.config.declare.ranges import Count, Range
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import Step


class ManualGC(Callback):
    """Switches Python's own collection off while the run trains and collects on every rank at the same steps.

    Otherwise each process pauses when it likes, and all the others wait for it.
    """

    class Config(Callback.Config):
        every: Count = 50
        """Steps between two collections."""
        generation: Annotated[int, Range(ge=0, le=2)] = 1
        """The oldest generation that is looked at: 0 is quick, 2 looks at everything."""

    config: Config
    was_on = False

    def on_train_start(self, trainer: TrainingRun) -> None:
        self.was_on = gc.isenabled()
        gc.disable()
        gc.collect()

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if (step.index + 1) % self.config.every == 0:
            gc.collect(self.config.generation)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.was_on:
            gc.enable()
