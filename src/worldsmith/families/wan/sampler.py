"""`WanSampler`: UniPC of diffusers, with one expert or two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worldsmith.families.diffusers_pipeline.sampler import SchedulerSampler, SchedulerSolver
from worldsmith.families.wan.model import TIMESTEPS, WanGenerator, begin_with
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import Beginning, SampleLayout


class WanSampler(SchedulerSampler):
    model: WanGenerator

    @with_real_values
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        scheduler = self.model.defaults.make_scheduler(self.sampling.shift)
        scheduler.set_timesteps(self.sampling.steps)
        return scheduler

    @property
    def scales(self) -> Sequence[float]:
        low, boundary = self.model.defaults.guidance_2, self.model.config.boundary_ratio
        if boundary is None or low is None or self.sampling.guidance != self.model.defaults.guidance:
            return super().scales
        timesteps = self.make_scheduler().timesteps.tolist()
        return [self.sampling.guidance if step >= boundary * TIMESTEPS else low for step in timesteps]

    def start(self, layout: SampleLayout, solver: SchedulerSolver, condition: Tensor | None) -> tuple[Tensor, Any]:
        """Raises ValueError for an image that the network does not read, and without one that it does."""
        model = self.model
        beside, given = model.config.network.takes_image, layout.condition_frames
        if given > 1 or (given and "image2video" not in model.config.modes) or (beside and not given):
            raise ValueError(f"this network makes {', '.join(model.config.modes)}: of one image, where it takes one")
        state, _ = super().start(layout, solver, condition)
        if condition is None:
            return state, None
        if beside:
            frames = 1 + (layout.latent_shape[0] - 1) * model.config.latent_grid[0]
            states = model.image_encoder.states([condition])[0] if model.config.network.image_dim else None
            return state, (model.beside_image(model.vae.encode_opening(condition, frames)), states)
        return state, model.encode(condition).to(state.device)

    def beside(self, samples: Sequence[Beginning]) -> dict[str, Any]:
        shown = [sample.shown for sample in samples]
        if self.model.config.network.takes_image:
            found: dict[str, Any] = {"image": torch.stack([image for image, _ in shown]), "both": True}
            if self.model.config.network.image_dim:
                found["image_states"] = torch.stack([states for _, states in shown])
            return found
        return {"first": shown, "both": True}

    def finish(self, sample: Beginning, state: Tensor) -> Tensor:
        return state if self.model.config.network.takes_image else begin_with([sample.shown], state[None])[0]
