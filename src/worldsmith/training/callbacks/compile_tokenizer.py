"""torch.compile of the video VAE's encoder, some steps into the run."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from worldsmith.config.declare.ranges import NotNegative
from worldsmith.data.clips.resolution import RESOLUTIONS, check_tier
from worldsmith.training.callbacks.base import Callback

if TYPE_CHECKING:
    from worldsmith.training.step import Step
    from worldsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)


class CompileTokenizer(Callback):
    """Compiles the VAE's encoder, once for each shape of a window of frames that comes.

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
            for tier in self.warmup_resolutions or ():
                check_tier(tier)

    config: Config
    done: bool = False

    def on_training_step_start(self, trainer: Trainer, step: Step) -> None:
        if not self.config.enabled or self.done or step.index < self.config.compile_after_iterations:
            return
        self.done = True
        trainer.generator.vae.compile_encoder()
        start = time.perf_counter()
        for tier in self.config.warmup_resolutions or ():
            for width, height in RESOLUTIONS[tier].values():
                self.warm_up(trainer, width, height)
        logger.info("the VAE encoder is compiled from step %d on (%.0f s)", step.index + 1, time.perf_counter() - start)

    def warm_up(self, trainer: Trainer, width: int, height: int) -> None:
        """Encodes a black clip: of the run's length where that is fixed, else of the first frame and two windows."""
        import torch

        vae, frames = trainer.generator.vae, trainer.config.dataloader_train.dataset.num_video_frames
        length = frames - (frames - 1) % vae.temporal_factor if frames > 0 else 1 + 2 * vae.window(height, width)
        vae.encode(torch.zeros(3, length, height, width, dtype=torch.uint8))
