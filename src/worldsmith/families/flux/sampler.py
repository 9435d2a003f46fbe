"""`FluxSampler`: Euler's method of diffusers, with the scale of guidance as an input of the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldsmith.families.diffusers_pipeline.sampler import SchedulerSampler
from worldsmith.families.flux.architecture import PACKED
from worldsmith.families.flux.model import FluxGenerator
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import Beginning, Sampling


class FluxSampler(SchedulerSampler):
    model: FluxGenerator

    def __init__(self, model: FluxGenerator, sampling: Sampling) -> None:
        if not model.config.network.guidance_embeds and sampling.guidance != 1:
            raise ValueError(f"guidance: expected 1, found {sampling.guidance:g}; this network has no input for it")
        super().__init__(model, sampling)

    @with_real_values
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        defaults, steps = self.model.defaults, self.sampling.steps
        scheduler = defaults.make_scheduler(self.sampling.shift)
        tokens = math.prod(latent_shape) // PACKED if latent_shape else defaults.base_image_seq_len
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=defaults.log_shift(tokens))
        return scheduler

    @property
    def scales(self) -> Sequence[float]:
        """There is one branch."""
        return [1.0] * self.sampling.steps

    def beside(self, samples: Sequence[Beginning]) -> dict[str, Any]:
        return {"guidance": self.sampling.guidance}
