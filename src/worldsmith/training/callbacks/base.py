"""`Callback`: named points of a run at which a component may act."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config import Configurable

if TYPE_CHECKING:
    from worldsmith.monitor.sinks import Sinks
    from worldsmith.training.step import Step
    from worldsmith.training.trainer import Trainer
    from worldsmith.training.validation import Validation


class Callback(Configurable):
    """Does nothing at every point; subclasses override the points that they need.

    Before the first step: on_run_start → (the first batch is read) → on_train_start. Points in the order of a step:
    on_training_step_start → (forward and backward of all packs) → on_before_optimizer_step → (optimizer, scheduler,
    average) → on_training_step_end → after_training_step → (validation, when it is due) → on_validation_end → (save,
    when it is due) → on_save_checkpoint_end. All ranks call all points. `folder` belongs to the callback; it exists on
    rank 0.
    """

    class Config(Configurable.Config):
        """A callback without settings."""

        def check_run(self, run: Trainer.Config) -> None:
            """Raises WrongValueError for a run that this cannot be part of."""

    def __init__(self, config: Config, *, folder: Path) -> None:
        self.config = config
        self.folder = folder

    def on_run_start(self, trainer: Trainer) -> None:
        """Everything is built and restored, `trainer.iteration` steps are done; the folder is this run's."""

    def start_lines(self, trainer: Trainer) -> Iterable[str]:
        """What it adds to the lines with which a run starts, on rank 0."""
        return ()

    def figures(self, trainer: Trainer, step: Step) -> Mapping[str, Any]:
        """Further figures of a step that is logged, asked for on all ranks; those of rank 0 go to all sinks."""
        return {}

    def on_train_start(self, trainer: Trainer) -> None:
        """The first batch is read, and what the run is about to do is said."""

    def on_training_step_start(self, trainer: Trainer, step: Step) -> None:
        """The step's packs are read; nothing is computed yet."""

    def on_before_optimizer_step(self, trainer: Trainer, step: Step) -> None:
        """Gradients of all packs are summed; `step.loss` is known. Here gradients may be changed."""

    def on_training_step_end(self, trainer: Trainer, step: Step) -> None:
        """The step is done or skipped and counted."""

    def after_training_step(self, trainer: Trainer, step: Step) -> None:
        """All callbacks have seen the end of the step: whoever logs it may ask them for `figures`."""

    def on_validation_end(self, trainer: Trainer, validation: Validation) -> None:
        """The weights after `trainer.iteration` steps are validated; after a resume perhaps for the second time."""

    def on_save_checkpoint_end(self, trainer: Trainer, checkpoint: Path) -> None:
        """A complete checkpoint has become visible."""

    def on_train_end(self, trainer: Trainer) -> None:
        """The last step is done, or the run stops early: `trainer.outcome` says how; None when it fails."""

    def records(self, name: str, trainer: Trainer) -> Sinks:
        """A file of lines in the callback's folder; what a run that goes on will do again is removed from it."""
        from worldsmith.monitor.metrics_log import MetricsLog
        from worldsmith.monitor.sinks import Sinks

        path, sinks = self.folder / name, Sinks()
        sinks.add(str(path), lambda: MetricsLog(path, resumed_step=trainer.iteration))
        return sinks
