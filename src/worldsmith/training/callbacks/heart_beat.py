"""`status.json`: the run's heart beat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.config.declare.ranges import Range
from worldsmith.monitor.sinks import describe
from worldsmith.training.callbacks.base import Callback, TrainingRun
from worldsmith.training.progress.activity import activity

if TYPE_CHECKING:
    from worldsmith.monitor.status_file import StatusFile


class HeartBeat(Callback):
    """Says in `status.json`, in the run folder, where the run stands: state, step, what it does, time left.

    `state` is `starting` until the first batch is read, then `running`, and at the end `finished`, `stopped` (it can be
    resumed) or `failed`, with a `reason`. A run that died without a word has an old `updated` and nobody at its lock.
    """

    class Config(Callback.Config):
        every_seconds: Annotated[float, Range(gt=0)] = 2.0
        """Seconds between two beats; a thread writes them, also while a step takes long."""

    config: Config
    file: StatusFile | None = None
    state = "starting"
    reason: str | None = None

    def on_run_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        from worldsmith.monitor.status_file import StatusFile, now

        self.started = now()
        path = trainer.run_folder / "status.json"
        self.file = StatusFile(path, lambda: self.status(trainer), seconds=self.config.every_seconds)

    def on_train_start(self, trainer: TrainingRun) -> None:
        self.state = "running"

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.file is None:
            return
        error = sys.exc_info()[1]
        self.state = "failed" if trainer.outcome is None else trainer.outcome.value
        self.reason = trainer.reason if error is None else describe(error)
        self.file.close()
        self.file = None

    def status(self, trainer: TrainingRun) -> dict[str, Any]:
        most = trainer.config.trainer.max_iter
        return {
            "state": self.state,
            "step": trainer.iteration,
            "max_iter": most,
            "started": self.started,
            "remaining_seconds": trainer.pace.remaining_seconds(most - trainer.iteration),
            "doing": activity(trainer)[0],
            "reason": self.reason,
        }
