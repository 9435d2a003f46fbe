"""`CompileTokenizer` and `ManualGC`: settings that make steps faster."""

from __future__ import annotations

import gc
import logging
import time
from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.config import WrongValueError
from worldsmith.config.declare.ranges import Count, NotNegative, Range
from worldsmith.data.clips.resolution import check_tier
from worldsmith.tasks.registry import task_of
from worldsmith.tasks.task import SampleEncoder
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)

ENABLED = "trainer.callbacks.compile_tokenizer.enabled"


class CompileTokenizer(Callback):
    """Compiles the task's encoder, once for each shape of a window of frames that comes.

    - For runs that encode every clip anew in each epoch. With `dataloader_train.latent_cache` it is refused: a clip is
      then encoded once, and its latents would differ in their last bits with the step at which that happened.
    - A run that goes on from a checkpoint compiles at the same step as one that was never stopped.
    """

    class Config(Callback.Config):
        enabled: bool = False
        """Whether the encoder is compiled. Pays off when clips are encoded in every step; needs no latent cache."""
        compile_after_iterations: NotNegative = 3
        """Steps that run before the encoder is compiled."""
        warmup_resolutions: list[str] | None = None
        """Tiers whose sizes are all compiled at that step, ahead of use. None: compile what comes, when it comes."""

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

    def on_training_step_start(self, trainer: TrainingRun, step: Step) -> None:
        if not self.config.enabled or self.done or step.index < self.config.compile_after_iterations:
            return
        self.done = True
        start = time.perf_counter()
        trainer.task.encoder.compile(self.config.warmup_resolutions or ())
        logger.info("the encoder is compiled from step %d on (%.0f s)", step.index + 1, time.perf_counter() - start)


class ManualGC(Callback):
    """Switches Python's own collection off while the run trains and collects on every rank at the same steps.

    Otherwise each process pauses when it likes, and all the others wait for it.
    """

    class Config(Callback.Config):
        every: Count = 50
        """Steps between two collections."""
        generation: Annotated[int, Range(ge=0, le=2)] = 1
        """The oldest generation that is looked at: 0 is quick, 2 looks at everything."""

    config: Config
    was_on = False

    def on_train_start(self, trainer: TrainingRun) -> None:
        self.was_on = gc.isenabled()
        gc.disable()
        gc.collect()

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if (step.index + 1) % self.config.every == 0:
            gc.collect(self.config.generation)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.was_on:
            gc.enable()
