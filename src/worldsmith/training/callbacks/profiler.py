"""Windows of steps that are recorded in every detail."""

from __future__ import annotations

import logging
from dataclasses import field
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)


class Profiler(Callback):
    """Records windows of steps with torch.profiler: `step_<first>_rank_<n>.json`, which https://ui.perfetto.dev opens.

    A recorded step is slower than others.
    """

    class Config(Callback.Config):
        first_step: Count = 10
        """The first step that is recorded, counted from 1 over the whole run."""
        steps: Count = 2
        """How many steps a window has."""
        every: NotNegative = 0
        """Steps between the beginnings of two windows. 0: there is one."""
        ranks: list[NotNegative] = field(default_factory=lambda: [0])
        """The processes that record."""
        shapes: bool = False
        """Whether the shapes of tensors are recorded."""
        memory: bool = False
        """Whether allocations are recorded."""

    config: Config
    active: Any = None

    def on_training_step_start(self, trainer: TrainingRun, step: Step) -> None:
        if trainer.world.rank not in self.config.ranks or not self.begins(step.index + 1):
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
        self.first, self.rank = step.index + 1, trainer.world.rank
        self.active = profile(activities=kinds, record_shapes=self.config.shapes, profile_memory=self.config.memory)
        self.active.start()

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if self.active is not None and step.index + 2 - self.first >= self.config.steps:
            self.write()

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.active is not None:
            self.write()

    def begins(self, step: int) -> bool:
        """Whether a window begins with this step."""
        since, every = step - self.config.first_step, self.config.every
        return self.active is None and (since == 0 or (every > 0 and since > 0 and since % every == 0))

    def write(self) -> None:
        active, self.active = self.active, None
        path = self.folder / f"step_{self.first:09d}_rank_{self.rank}.json"
        try:
            active.stop()
            self.folder.mkdir(exist_ok=True)
            active.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            logger.warning("%s cannot be written, the run goes on: %s", path, error)
        else:
            logger.info("profile of the steps from %d on: %s", self.first, path)
