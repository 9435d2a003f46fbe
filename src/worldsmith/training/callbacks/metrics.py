"""`metrics.jsonl` and TensorBoard files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worldsmith.monitor.metrics_log import MetricsLog
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.progress.figures import data_counts, step_metrics

if TYPE_CHECKING:
    from worldsmith.monitor.tensorboard_log import TensorBoardLog
    from worldsmith.training.step import Step
    from worldsmith.training.trainer import Trainer
    from worldsmith.training.validation import Validation


class Metrics(Callback):
    """Writes the figures of every `trainer.logging_iter`-th step, of the first, the last, and of each skipped one.

    A validation has a line of its own, with the number of steps before it. A run that goes on from a checkpoint first
    removes the lines of what it will do again.
    """

    class Config(Callback.Config):
        tensorboard: bool = True
        """Whether TensorBoard files are written beside metrics.jsonl."""

    config: Config
    log: MetricsLog | None = None
    board: TensorBoardLog | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        if not trainer.world.is_main:
            return
        again = trainer.config.trainer.validates_after(trainer.iteration)
        self.log = MetricsLog(
            trainer.run_folder / "metrics.jsonl",
            resumed_step=trainer.iteration,
            is_redone=lambda record: again and "val/loss" in record,
        )
        if self.config.tensorboard:
            from worldsmith.monitor.tensorboard_log import TensorBoardLog

            self.board = TensorBoardLog(self.folder, resumed_step=trainer.iteration)

    def on_training_step_end(self, trainer: Trainer, step: Step) -> None:
        number, loop = step.index + 1, trainer.config.trainer
        if not (number % loop.logging_iter == 0 or number in (1, loop.max_iter) or step.skipped):
            return
        rejected, loaded = data_counts(trainer)  # on every rank: they are sums over them
        self._write(number, {**step_metrics(step, trainer), "rejected": rejected, "loaded": loaded})

    def on_validation_end(self, trainer: Trainer, validation: Validation) -> None:
        counts = {"samples": validation.samples, "tokens": validation.tokens, "seconds": validation.seconds}
        self._write(trainer.iteration, {**validation.figures, **{f"val/{name}": n for name, n in counts.items()}})

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        if self.log is not None:
            metrics["unwritten"] = self.log.unwritten
            self.log.write(step, metrics)
        if self.board is not None:
            self.board.write(step, metrics)

    def on_train_end(self, trainer: Trainer) -> None:
        for log in (self.log, self.board):
            if log is not None:
                log.close()
