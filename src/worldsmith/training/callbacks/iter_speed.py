"""The live line in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.training.callbacks.base import Callback, TrainingRun
from worldsmith.training.progress.activity import activity

if TYPE_CHECKING:
    from worldsmith.monitor.terminal_view import TerminalView
    from worldsmith.training.step import Step


class IterSpeed(Callback):
    """Shows step, loss, tokens per second and the time left, and below it what goes on beside the steps; on rank 0."""

    class Config(Callback.Config):
        """Has no settings: a terminal is redrawn in place, a file gets a line now and then."""

    view: TerminalView | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        from worldsmith.monitor.terminal_view import TerminalView

        self.view = TerminalView(
            total_steps=trainer.config.trainer.max_iter,
            first_step=trainer.iteration,
            meanwhile=lambda: None if (now := activity(trainer))[0] == "training" else now,
        )
        self.view.__enter__()

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if self.view is None:
            return
        self.view.update(
            step.index + 1,
            loss=step.loss,
            tokens_per_second=trainer.pace.tokens_per_second,
            remaining_seconds=trainer.pace.remaining_seconds(trainer.config.trainer.max_iter - step.index - 1),
        )

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.view is not None:
            self.view.__exit__(None, None, None)
            self.view = None
