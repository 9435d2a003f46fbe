"""Which samples a step held that had to be skipped."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from worldsmith.config.declare.ranges import Count
from worldsmith.monitor.metrics_log import plain
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)


class BadBatches(Callback):
    """Writes `step_<n>_rank_<r>.json` for a skipped step: loss, gradient norm, and the samples of each batch.

    Every rank writes its own. Later skips than the first `most` of this start are not written, which is said.
    """

    class Config(Callback.Config):
        most: Count = 20
        """So many skipped steps are written, at most."""

    config: Config
    written = 0

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if not step.skipped or step.overflowed:  # which says nothing of the samples
            return
        self.written += 1
        if self.written > self.config.most:
            if self.written == self.config.most + 1 and trainer.world.is_main:
                logger.warning("%s holds %d skipped steps; later ones are not written", self.folder, self.config.most)
            return
        norm = step.gradient.norm if step.gradient else None
        batches = [trainer.task.name_samples(batch) for batch in step.batches]
        content = {"step": step.index + 1, "loss": step.loss, "grad_norm": norm, "batches": batches}
        path = self.folder / f"step_{step.index + 1:09d}_rank_{trainer.world.rank}.json"
        try:
            self.folder.mkdir(exist_ok=True)
            path.write_text(json.dumps(plain("step", content), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            logger.warning("%s cannot be written, the run goes on: %s", path, error)
