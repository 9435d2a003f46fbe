"""Sampling from CogVideoX with DDIM or DPM-Solver++ of diffusers, with constant or dynamic guidance.

Torch is imported on first use, so that a config can be checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Count, Factor, Range
from worldsmith.families.diffusers_pipeline.sampling import PipelineDefaults, SchedulerSampler, SchedulerSolver
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import NOISE_LEVELS, Beginning, DynamicGuidance, SampleLayout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.families.cogvideox.model import CogVideoXGenerator

KEPT = "a video is made anew from another one (strength says how much of it), and an image is its first frame"
SCHEDULERS = {"ddim": "CogVideoXDDIMScheduler", "dpm": "CogVideoXDPMScheduler"}
"""Scheduler classes of diffusers."""


class CogVideoXSampler(SchedulerSampler):
    """Samples videos, with DDIM or DPM-Solver++, from texts, from images, or anew from other videos."""

    model: CogVideoXGenerator

    @with_real_values
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        scheduler = self.model.defaults.make_scheduler(self.sampling.scheduler or self.model.defaults.scheduler)
        scheduler.set_timesteps(self.sampling.steps)
        return scheduler

    @property
    def scales(self) -> Sequence[float]:
        constant = super().scales
        if self.sampling.dynamic_guidance in (None, "off") or self.sampling.guidance == 1:
            return constant
        timesteps = self.make_scheduler().timesteps[self.skipped :].tolist()
        by_step = self.sampling.dynamic_guidance == "by_step"
        lefts = range(len(constant), 0, -1) if by_step else timesteps
        exponent = self.model.defaults.guidance_exponent
        return [dynamic_scale(self.sampling.guidance, left, len(constant), exponent) for left in lefts]

    def make_solver(self, scheduler: Any, draws: torch.Generator) -> SchedulerSolver:
        kind = DPMSolver if self.sampling.scheduler == "dpm" else FramesFirst
        return kind(scheduler, draws, self.skipped)

    def start(
        self, layout: SampleLayout, solver: SchedulerSolver, condition: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the first state, and the latents of the conditioning image over all frames.

        Raises:
            ValueError: an image is given and the network accepts none, or the other way round.
        """
        import torch

        model, image = self.model, self.model.config.image
        if (image is not None) != (layout.condition_frames == 1) or layout.condition_frames > 1:
            raise ValueError(
                f"this network makes {', '.join(model.config.modes)}; give an image to that of images only"
            )
        frames = layout.latent_shape[0] + model.padding(layout.latent_shape[0])
        shape = (model.latent_channels, frames, *layout.latent_shape[1:])
        if condition is None:
            return solver.noise(shape).to(model.device), None
        moments = model.encode(condition)
        drawn = torch.randn((1, moments.shape[0] // 2, *moments.shape[1:]), generator=solver.draws)[0].to(
            moments.device
        )
        noise = solver.noise(shape).to(moments.device)
        if image is not None:
            shown = model.vae.image_latents(moments, drawn, image.latent_scale)
            return noise, image.place(shown[None], frames)[0]
        noisy: Tensor = solver.scheduler.add_noise(model.vae.latents(moments, drawn), noise, solver.timesteps[:1])
        return noisy, None

    def beside(self, samples: Sequence[Beginning]) -> dict[str, Any]:
        import torch

        images = [sample.shown for sample in samples if sample.shown is not None]
        return {"image": torch.stack(images)} if images else {}

    def finish(self, sample: Beginning, state: Tensor) -> Tensor:
        """Removes the latent frames that were added in front to fill the first token."""
        return state[:, self.model.padding(sample.conditional.latent_shape[0]) :]


class FramesFirst(SchedulerSolver):
    """Draws noise as [t, C, h, w], the layout of CogVideoX in diffusers."""

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        channels, frames, *sides = shape
        return super().noise((frames, channels, *sides)).transpose(0, 1)

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        return super().step(answer.transpose(0, 1), state.transpose(0, 1)).transpose(0, 1)


class DPMSolver(FramesFirst):
    """Passes the last prediction of the clean sample to the next step."""

    clean: Tensor | None = None

    def advance(self, answer: Tensor, timestep: Tensor, state: Tensor) -> Tensor:
        back = self.timesteps[self.index - 2] if self.index > 1 else None
        moved, self.clean = self.scheduler.step(
            answer, self.clean, timestep, back, state, **self.arguments, return_dict=False
        )
        return moved


def dynamic_scale(guidance: float, left: float, steps: int, exponent: int = 5) -> float:
    """Guidance scale 1 + g·(1 - cos(π·((steps - left)/steps)^exponent))/2.

    In the released pipelines `left` is the timestep, not a number of steps: the scale swings between 1 and 1 + g.
    """
    return 1 + guidance * (1 - math.cos(math.pi * ((steps - left) / steps) ** exponent)) / 2


class SamplingConfig(Config):
    """How videos are made where nothing else is asked; an exported pipeline has the scheduler."""

    scheduler: Literal["ddim", "dpm"] | None = None
    """The solver; None: dpm for a network with rotary positions, as for CogVideoX-5B, else ddim."""
    steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] = 50
    """Its steps."""
    guidance: Factor = 6.0
    """Scale of classifier-free guidance; 1 turns it off."""
    dynamic_guidance: DynamicGuidance | None = None
    """How the scale changes: off, by_timestep (as published: it swings between 1 and 1 + guidance), or by_step (it
    grows from 1 to there); None: by_timestep with dpm, else off."""
    guidance_exponent: Count = 5
    """Of the scale that changes."""


@dataclass(frozen=True, slots=True)
class CogVideoXDefaults(PipelineDefaults):
    """Generation settings and the noise schedule of the training (`VPrediction.Config`); by default those of 5B."""

    refused: ClassVar[Mapping[str, str]] = {
        "shift": "the noise table of the training says how noisy each step is",
        "condition_frame_indexes_vision": KEPT,
        "condition_video_keep": KEPT,
    }
    schedulers: ClassVar[tuple[str, ...]] = tuple(SCHEDULERS)

    steps: int = 50
    scheduler: str = "dpm"
    """ddim, or dpm (DPM-Solver++ of second order, which draws noise at each step)."""
    dynamic_guidance: str = "off"
    """off, by_timestep or by_step."""
    guidance_exponent: int = 5
    num_timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    shift_scale: float = 1.0
    zero_terminal_snr: bool = True
    timestep_spacing: str = "trailing"

    def scheduler_settings(self) -> dict[str, Any]:
        """Returns the config of a diffusers scheduler with this noise schedule."""
        return {
            "num_train_timesteps": self.num_timesteps,
            "beta_start": self.beta_start,
            "beta_end": self.beta_end,
            "beta_schedule": "scaled_linear",
            "prediction_type": "v_prediction",
            "rescale_betas_zero_snr": self.zero_terminal_snr,
            "snr_shift_scale": self.shift_scale,
            "timestep_spacing": self.timestep_spacing,
            "clip_sample": False,
            "set_alpha_to_one": True,
            "steps_offset": 0,
        }

    def make_scheduler(self, name: str) -> Any:
        """Builds the scheduler of diffusers."""
        import diffusers

        return getattr(diffusers, SCHEDULERS[name])(**self.scheduler_settings())
