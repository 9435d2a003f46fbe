"""`FirstStepWatchdog` and `BadBatches`: records of a first step that does not end, and of skipped steps."""

from __future__ import annotations

import faulthandler
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from worldsmith.config.declare.ranges import Count, Range
from worldsmith.monitor.metrics_log import to_json_value
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import StepResult

logger = logging.getLogger(__name__)


class FirstStepWatchdog(Callback):
    """Writes the stack trace of each thread of a process if its first step takes longer than `after_seconds`.

    Every rank has its own time limit, which includes reading the first batch, and its own file `rank_<n>.txt`. The file
    is written by `faulthandler` without the GIL, so it is written even if all other threads hang.
    """

    class Config(Callback.Config):
        after_seconds: Annotated[float, Range(gt=0)] = 1800.0
        """Time limit of the first step, in seconds."""
        abort: bool = False
        """Whether a process whose first step exceeds the time limit ends with exit code 1 instead of waiting."""

    config: Config
    file: IO[str] | None = None

    def on_run_start(self, trainer: TrainingRun) -> None:
        path, seconds = self.folder / f"rank_{trainer.world.rank}.txt", self.config.after_seconds
        try:
            self.folder.mkdir(exist_ok=True)
            self.file = path.open("w")
        except OSError as error:
            logger.warning("%s cannot be written, so the first step has no time limit: %s", path, error)
            return
        effect = "; the process ends now" if self.config.abort else "; the process continues to wait"
        message = (
            f"[E123] the first step has not ended after {seconds:g} s; {path} contains the stack traces of all "
            f"threads{effect}"
        )
        self.timer = threading.Timer(max(seconds - 1, seconds / 2), logger.warning, (message,))
        self.timer.daemon = True
        self.timer.start()
        faulthandler.dump_traceback_later(seconds, file=self.file, exit=self.config.abort)

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        self.stop_watching()

    def on_train_end(self, trainer: TrainingRun) -> None:
        self.stop_watching()

    def stop_watching(self) -> None:
        """Ends the time limit of the first step and removes the file of stack traces if it is empty."""
        if self.file is None:
            return
        faulthandler.cancel_dump_traceback_later()
        self.timer.cancel()
        self.file.close()
        path, self.file = Path(self.file.name), None
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()


class BadBatches(Callback):
    """Writes `step_<n>_rank_<r>.json` for a skipped step: loss, gradient norm, and the samples of each batch.

    Every rank writes its own file. Only the first `most` (a setting) skipped steps since the process started are
    written; rank 0 logs when later ones are omitted. Steps that overflow float16 are not written.
    """

    class Config(Callback.Config):
        most: Count = 20
        """Max number of skipped steps that each process records."""

    config: Config
    written = 0

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if not step.skipped or step.overflowed:  # which does not depend on the samples
            return
        self.written += 1
        if self.written > self.config.most:
            if self.written == self.config.most + 1 and trainer.world.is_main:
                logger.warning(
                    "%s contains %d skipped steps, the maximum; later ones are not written",
                    self.folder,
                    self.config.most,
                )
            return
        norm = step.gradient.norm if step.gradient else None
        batches = [trainer.task.name_samples(batch) for batch in step.inputs.batches]
        content = {"step": trainer.iteration, "loss": step.loss, "grad_norm": norm, "batches": batches}
        self.write_json(f"step_{trainer.iteration:09d}_rank_{trainer.world.rank}.json", to_json_value("step", content))
