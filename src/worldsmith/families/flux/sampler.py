"""`FluxSampler`: Euler's method of diffusers, with the scale of guidance as an input of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsmith.families.diffusers_pipeline.sampler import FlowMatchSampler
from worldsmith.families.flux.model import FluxGenerator
from worldsmith.models.video_model import Beginning, Sampling


class FluxSampler(FlowMatchSampler):
    model: FluxGenerator

    def __init__(self, model: FluxGenerator, sampling: Sampling) -> None:
        if not model.config.network.guidance_embeds and sampling.guidance != 1:
            raise ValueError(f"guidance: expected 1, found {sampling.guidance:g}; this network has no input for it")
        super().__init__(model, sampling)

    @property
    def scales(self) -> Sequence[float]:
        """There is one branch."""
        return [1.0] * self.sampling.steps

    def beside(self, samples: Sequence[Beginning]) -> dict[str, Any]:
        return {"guidance": self.sampling.guidance}
