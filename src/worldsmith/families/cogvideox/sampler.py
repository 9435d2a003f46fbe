"""`CogVideoXSampler`: DDIM or DPM-Solver++ of diffusers, with constant or changing guidance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.diffusers_pipeline.sampler import SchedulerSampler, SchedulerSolver
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import Beginning, SampleLayout


class CogVideoXSampler(SchedulerSampler):
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
        """Raises ValueError for an image that the network does not read, and without one that it does."""
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
        images = [sample.shown for sample in samples if sample.shown is not None]
        return {"image": torch.stack(images)} if images else {}

    def finish(self, sample: Beginning, state: Tensor) -> Tensor:
        """Without the latent frame in front that made tokens whole."""
        return state[:, self.model.padding(sample.conditional.latent_shape[0]) :]


class FramesFirst(SchedulerSolver):
    """Draws noise of [t, C, h, w]: in diffusers, frames stand before channels."""

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        channels, frames, *sides = shape
        return super().noise((frames, channels, *sides)).transpose(0, 1)

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        return super().step(answer.transpose(0, 1), state.transpose(0, 1)).transpose(0, 1)


class DPMSolver(FramesFirst):
    """Hands on the last prediction of the clean sample."""

    clean: Tensor | None = None

    def advance(self, answer: Tensor, timestep: Tensor, state: Tensor) -> Tensor:
        back = self.timesteps[self.index - 2] if self.index > 1 else None
        moved, self.clean = self.scheduler.step(
            answer, self.clean, timestep, back, state, **self.arguments, return_dict=False
        )
        return moved


def dynamic_scale(guidance: float, left: float, steps: int, exponent: int = 5) -> float:
    """1 + g·(1 - cos(π·((steps - left)/steps)^exponent))/2.

    As published, `left` is the timestep and no number of steps, so that the scale swings between 1 and 1 + g.
    """
    return 1 + guidance * (1 - math.cos(math.pi * ((steps - left) / steps) ** exponent)) / 2
