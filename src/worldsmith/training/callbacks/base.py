"""`Callback`: hooks of a run, and `TrainingRun`: the attributes of a run that callbacks can read."""

from __future__ import annotations

import enum
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from worldsmith.config import Configurable
from worldsmith.config.errors import describe_error

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.checkpoint.run.checkpoint_store import Uploads
    from worldsmith.distributed.world import World
    from worldsmith.models.ema import PowerEMA
    from worldsmith.models.model import Model
    from worldsmith.monitor.sinks import Sinks
    from worldsmith.monitor.throughput import Throughput
    from worldsmith.tasks.task import Task
    from worldsmith.training.step import GradNorm, StepGuard, StepInputs, StepResult
    from worldsmith.training.validation import Validation, Validator


logger = logging.getLogger(__name__)


class Callback(Configurable):
    """Base class of callbacks; subclasses override the hooks that they need.

    All ranks call all hooks. `folder` belongs to the callback; it exists on rank 0. A pack is a batch of samples that
    share one forward pass; a step has `trainer.grad_accum_iter` packs on each rank.

    - Before the first step: on_run_start → (the first batch is read) → on_train_start.
    - In each step: on_training_step_start → (forward and backward of all packs) → on_before_optimizer_step →
      (optimizer, scheduler, EMA) → on_training_step_end → after_training_step → (validation, if due) →
      on_validation_end → (save, if due) → on_save_checkpoint_end.
    """

    class Config(Configurable.Config):
        """Base class of callback configs; subclasses add the settings of the callback as fields."""

        def check_run(self, run: Any) -> None:
            """Raises WrongValueError if the callback cannot be part of a run with the config `run`, a `RunConfig`."""

    def __init__(self, config: Config, *, folder: Path) -> None:
        self.config = config
        self.folder = folder

    def on_run_start(self, trainer: TrainingRun) -> None:
        """Called after the run was built and restored; `trainer.iteration` steps are completed."""

    def start_lines(self, trainer: TrainingRun) -> Iterable[str]:
        """Returns lines to print at the start of a run; only rank 0 calls it."""
        return ()

    def metrics(self, trainer: TrainingRun, step: StepResult) -> Mapping[str, Any]:
        """Returns additional metrics of a logged step, JSON values by metric name.

        Called on all ranks; only the metrics of rank 0 are written.
        """
        return {}

    def on_train_start(self, trainer: TrainingRun) -> None:
        """Called after the first batch was read and the start of the run was logged."""

    def on_training_step_start(self, trainer: TrainingRun, inputs: StepInputs) -> None:
        """Called after the packs of a step were read, before the forward pass."""

    def step_counts(self, trainer: TrainingRun, inputs: StepInputs) -> Mapping[str, float]:
        """Returns values of this rank to sum over all ranks, by name; the sums are in `StepResult.sums`.

        They are summed together with the losses, without a further collective call. Called after the backward passes
        of all packs, unless the step has no weight; all ranks must return the same names.
        """
        return {}

    def on_before_optimizer_step(self, trainer: TrainingRun, step: StepResult) -> GradNorm | None:
        """Called after the backward passes of all packs; `step.loss` is set. Gradients may be changed here.

        Returns:
            The gradient norm before clipping, if the callback clips gradients; else None.
        """
        return None

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        """Called after a step was completed or skipped and counted in `trainer.iteration`."""

    def after_training_step(self, trainer: TrainingRun, step: StepResult) -> None:
        """Called after `on_training_step_end` of all callbacks; their `metrics` can be read."""

    def on_validation_end(self, trainer: TrainingRun, validation: Validation) -> None:
        """Called after the validation at step `trainer.iteration`; a resumed run may repeat a validation."""

    def on_save_checkpoint_end(self, trainer: TrainingRun, checkpoint: Path) -> None:
        """Called after a complete checkpoint was published by an atomic rename."""

    def on_train_end(self, trainer: TrainingRun) -> None:
        """Called at the end of the run; `trainer.outcome` is None after a failure."""

    def write_json(self, name: str, content: Any) -> None:
        """Writes `content`, plain data, as a JSON file in the callback's folder; a write error is only logged."""
        try:
            self.folder.mkdir(exist_ok=True)
            text = json.dumps(content, ensure_ascii=False, indent=1)
            (self.folder / name).write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            logger.warning("%s cannot be written, the run continues: %s", self.folder / name, error)

    def records(self, name: str, trainer: TrainingRun) -> Sinks:
        """Opens a JSON Lines file in the callback's folder on rank 0.

        Lines of steps that a resumed run repeats are removed from the file.

        Args:
            name: Name of the file.
            trainer: The run.

        Returns:
            Writer of the file; on ranks other than 0 it discards all lines.
        """
        from worldsmith.monitor.metrics_log import MetricsLog
        from worldsmith.monitor.sinks import Sinks

        path, sinks = self.folder / name, Sinks()
        if trainer.world.is_main:
            sinks.add(str(path), lambda: MetricsLog(path, resumed_step=trainer.iteration))
        return sinks


class Outcome(enum.Enum):
    """Result of `Trainer.train`: FINISHED (no step is left) or STOPPED (by a request; the run can be resumed)."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """A stop was requested; the run has saved a checkpoint and can be resumed."""


def describe_end(trainer: TrainingRun) -> dict[str, str | None]:
    """Returns the final `state` of a run ("finished", "stopped" or "failed") and its `reason`.

    The reason is the current exception or the cause of an early end; None if all steps are complete. Call it in
    `on_train_end`.
    """
    error = sys.exception()
    return {
        "state": "failed" if trainer.outcome is None else trainer.outcome.value,
        "reason": trainer.reason if error is None else describe_error(error),
    }


class TrainingState(Protocol):
    """Attributes of the training state that callbacks use: data loader, optimizer, trained parameters, EMA weights."""

    loader: Any
    optimizer: Any
    parameters: list[nn.Parameter]
    """The trained parameters, in the optimizer's order."""
    ema: PowerEMA | None
    guard: StepGuard


class TrainingRun(Protocol):
    """Attributes of the running `Trainer` that callbacks use, such as config, ranks, model, task and progress."""

    config: Any
    """The `RunConfig`. It contains the callbacks' configs, so this module cannot import its class."""
    run_folder: Path
    world: World
    model: Model
    task: Task
    validator: Validator | None
    callbacks: dict[str, Callback]
    resumed: Path | None
    """The checkpoint from which the run resumes."""
    first_samples: int
    """Number of samples of the first batch."""
    pace: Throughput
    outcome: Outcome | None
    """Outcome of the run; None while it runs and after a failure."""
    reason: str | None
    """Reason why the run ended before its last step; None without one."""
    doing: str
    """Current activity: training, validation, saving, …"""
    share: float | None
    """Completed fraction of an activity other than training, 0 to 1; None if it is not known."""
    failed_saves: int
    uploads: Uploads
    memory_before: int
    """Memory in bytes that the process used before the model was built."""
    is_asked_to_stop: Callable[[], bool]

    @property
    def iteration(self) -> int:
        """Completed steps, including skipped ones."""

    @property
    def state(self) -> TrainingState:
        """Training state of the run: optimizer, trained parameters, EMA weights, data loader, skipped-step counters."""

    def busy(self, doing: str) -> AbstractContextManager[None]:
        """Context manager that reports `doing`, such as "saving", as the activity of the run within the block."""
