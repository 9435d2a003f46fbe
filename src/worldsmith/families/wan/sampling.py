"""Sampling from Wan with diffusers' UniPC scheduler, with one network or two experts.

Torch is imported on first use, so that a config can be checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.families.diffusers_pipeline.sampling import (
    PipelineDefaults,
    SchedulerSampler,
    SchedulerSolver,
    make_unipc_scheduler,
)
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import Beginning, SampleLayout

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.families.wan.model import WanGenerator

TIMESTEPS = 1000
"""Timestep of pure noise."""


class WanSampler(SchedulerSampler):
    """Samples with UniPC; a network of two experts switches to the other one at its boundary."""

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
        """Returns noise and the network's image input.

        Raises:
            ValueError: an image is given and the network accepts none, or the other way round.
        """
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
        import torch

        shown = [sample.shown for sample in samples]
        if self.model.config.network.takes_image:
            found: dict[str, Any] = {"image": torch.stack([image for image, _ in shown]), "both": True}
            if self.model.config.network.image_dim:
                found["image_states"] = torch.stack([states for _, states in shown])
            return found
        return {"first": shown, "both": True}

    def finish(self, sample: Beginning, state: Tensor) -> Tensor:
        return state if self.model.config.network.takes_image else replace_first_frames([sample.shown], state[None])[0]


@dataclass(frozen=True, slots=True)
class WanDefaults(PipelineDefaults):
    """Generation settings of Wan where the user gives none: the released ones of Wan 2.1 at 480p."""

    refused: ClassVar[Mapping[str, str]] = {
        "dynamic_guidance": "its guidance has one scale at each expert",
        "strength": "it is not trained to make a video anew from another one",
    }

    shift: float | None = 3.0
    steps: int = 50
    guidance: float = 5.0
    guidance_2: float | None = None
    """Guidance scale of the low-noise expert; None: that of the high-noise expert."""

    def make_scheduler(self, shift: float | None = None) -> Any:
        """Builds the scheduler of the released pipelines with `shift`, or with the shift of the training run."""
        return make_unipc_scheduler(shift or self.shift or 1.0)


def replace_first_frames(first: Sequence[Tensor | None], states: Tensor) -> Tensor:
    """Copies `states` [n, C, t, h, w] with the given latents as first frames; None leaves a sample unchanged."""
    states = states.clone()
    for state, frame in zip(states, first):
        if frame is not None:
            state[:, :1] = frame
    return states
