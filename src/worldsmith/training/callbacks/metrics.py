"""The stream of figures, into `metrics.jsonl`, TensorBoard files and Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldsmith.config.tree.plain import to_dict
from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.monitor.sinks import Sinks
from worldsmith.training.callbacks.base import Callback, TrainingRun
from worldsmith.training.progress.figures import nested, step_metrics

if TYPE_CHECKING:
    from worldsmith.training.step import Step
    from worldsmith.training.validation import Validation

FILE = "metrics.jsonl"


class Metrics(Callback):
    """Writes the figures of every `trainer.logging_iter`-th step, of the first, the last, and of each skipped one.

    A validation has a line of its own, with the number of steps before it. A run that goes on from a checkpoint first
    removes the lines of what it will do again. `job.wandb_mode` says whether Weights & Biases gets the figures, too.
    """

    class Config(Callback.Config):
        tensorboard: bool = True
        """Whether TensorBoard files are written beside metrics.jsonl."""

    config: Config
    sinks: Sinks | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        done, config = trainer.iteration, trainer.config
        again = config.trainer.validates_after(done)
        self.sinks = sinks = Sinks()
        sinks.sinks[FILE] = MetricsLog(
            trainer.run_folder / FILE, resumed_step=done, is_redone=lambda record: again and "val/loss" in record
        )
        if self.config.tensorboard:
            from worldsmith.monitor.tensorboard_log import TensorBoardLog

            sinks.add("TensorBoard", lambda: TensorBoardLog(self.folder, resumed_step=done))
        if config.job.wandb_mode != "disabled":
            from worldsmith.monitor.wandb_log import WandbLog

            sinks.add("Weights & Biases", lambda: WandbLog(trainer.run_folder, config.job, to_dict(config)))

    def after_training_step(self, trainer: TrainingRun, step: Step) -> None:
        number, loop = step.index + 1, trainer.config.trainer
        if not (number % loop.logging_iter == 0 or number in (1, loop.max_iter) or step.skipped):
            return
        metrics = step_metrics(step, trainer)  # on every rank: there are sums over them
        for callback in trainer.callbacks.values():
            metrics |= callback.figures(trainer, step)
        self._write(number, metrics)

    def on_validation_end(self, trainer: TrainingRun, validation: Validation) -> None:
        counts = {"samples": validation.samples, "tokens": validation.tokens, "seconds": validation.seconds}
        self._write(
            trainer.iteration, {**nested(validation.figures), **{f"val/{name}": n for name, n in counts.items()}}
        )

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        if self.sinks is None:
            return
        lost = dict(self.sinks.lost)
        metrics["unwritten"] = lost.pop(FILE, 0)
        if lost:
            metrics["unwritten_elsewhere"] = lost
        self.sinks.write(step, metrics)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.sinks is not None:
            self.sinks.close(failed=trainer.outcome is None)
