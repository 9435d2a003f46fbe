"""`CompileTokenizer` and `ManualGC` reduce the step time, `Profiler` shows how it is spent."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.config import WrongValueError
from worldsmith.config.declare.ranges import Count, NotNegative, Range
from worldsmith.data.clips.resolution import check_tier
from worldsmith.tasks.registry import task_of
from worldsmith.tasks.task import SampleEncoder
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import StepInputs, StepResult

logger = logging.getLogger(__name__)

ENABLED = "trainer.callbacks.compile_tokenizer.enabled"


class CompileTokenizer(Callback):
    """Compiles the encoder of the task, such as the VAE, with torch.compile, once for each clip shape.

    - For runs that encode every clip again in each epoch. It is rejected with `dataloader_train.latent_cache`:
      cached latents would depend, in their last bits, on whether a clip was encoded before or after the compilation.
    - A resumed run compiles at the same step as a run that was never stopped.
    """

    class Config(Callback.Config):
        enabled: bool = False
        """Whether the encoder is compiled. Useful if clips are encoded in every step; requires that no latent cache is
        used."""
        compile_after_iterations: NotNegative = 3
        """Number of steps after which the encoder is compiled."""
        warmup_resolutions: list[str] | None = None
        """Resolution buckets for whose frame sizes the encoder is compiled in advance, after `compile_after_iterations`
        steps. None: compile each size when it occurs."""

        def check(self) -> None:
            for index, tier in enumerate(self.warmup_resolutions or ()):
                check_tier(tier, f"warmup_resolutions[{index}]")

        def check_run(self, run: Any) -> None:
            if not self.enabled:
                return
            family = run.model.config.family
            encoder = task_of(family).encoder_class
            if encoder is None or encoder.compile is SampleEncoder.compile:
                why = f"models of the family '{family}' have no encoder to compile"
                raise WrongValueError({ENABLED: True}, why=why, remedy="use enabled = false")
            if cache := getattr(run.dataloader_train, "latent_cache", ""):
                raise WrongValueError(
                    {ENABLED: True, "dataloader_train.latent_cache": cache},
                    why="a cached clip is encoded once, and its latents would differ in their last bits before and "
                    "after compiling",
                    remedy='use enabled = false, or latent_cache = "" to encode every clip in every step',
                )

    config: Config
    done: bool = False

    def on_training_step_start(self, trainer: TrainingRun, inputs: StepInputs) -> None:
        if not self.config.enabled or self.done or inputs.index < self.config.compile_after_iterations:
            return
        self.done = True
        start = time.perf_counter()
        trainer.task.encoder.compile(self.config.warmup_resolutions or ())
        logger.info("the encoder is compiled from step %d on (%.0f s)", inputs.index + 1, time.perf_counter() - start)


class ManualGC(Callback):
    """Turns off Python's automatic garbage collection during training and collects on all ranks at the same steps.

    With automatic garbage collection each process pauses at other times, and all others wait for it. Objects that exist
    before the first step, such as modules, are never searched again.
    """

    class Config(Callback.Config):
        every: Count = 50
        """Steps between two garbage collections."""
        generation: Annotated[int, Range(ge=0, le=2)] = 1
        """Oldest generation that is collected: 0 is quick, 2 is a full collection."""

    config: Config
    was_on = False

    def on_train_start(self, trainer: TrainingRun) -> None:
        self.was_on = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if trainer.iteration % self.config.every == 0:
            gc.collect(self.config.generation)

    def on_train_end(self, trainer: TrainingRun) -> None:
        gc.unfreeze()
        if self.was_on:
            gc.enable()


class Profiler(Callback):
    """Profiles windows of steps with torch.profiler: `step_<first>_rank_<n>.json`, for https://ui.perfetto.dev.

    A recorded step is slower than others.
    """

    class Config(Callback.Config):
        first_step: Count = 10
        """First step to record, counted from 1 over the complete run."""
        steps: Count = 2
        """Number of recorded steps per window."""
        every: NotNegative = 0
        """Steps between the starts of two windows of recorded steps. 0: record only one window."""
        ranks: list[NotNegative] = field(default_factory=lambda: [0])
        """Ranks of the processes that record steps."""
        shapes: bool = False
        """Whether the shapes of tensors are recorded."""
        memory: bool = False
        """Whether memory allocations are recorded."""

    config: Config
    active: Any = None

    def on_training_step_start(self, trainer: TrainingRun, inputs: StepInputs) -> None:
        if trainer.world.rank not in self.config.ranks or not self.begins(inputs.index + 1):
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
        self.first, self.rank = inputs.index + 1, trainer.world.rank
        self.active = profile(activities=kinds, record_shapes=self.config.shapes, profile_memory=self.config.memory)
        self.active.start()

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if self.active is not None and trainer.iteration + 1 - self.first >= self.config.steps:
            self.write()

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.active is not None:
            self.write()

    def begins(self, step: int) -> bool:
        """Returns whether a window of recorded steps starts with step `step`, counted from 1."""
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
            logger.warning("%s cannot be written, the run continues: %s", path, error)
        else:
            logger.info("profile of the steps from %d on: %s", self.first, path)
