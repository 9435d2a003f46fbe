"""`Cosmos3Sampler`: UniPC over packs of samples, of which leading latent frames may be given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from worldsmith.families.diffusers_pipeline.defaults import make_unipc_scheduler
from worldsmith.families.diffusers_pipeline.sampler import SchedulerSolver
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import NOISE_LEVELS, Beginning, Predict, SampleLayout, VideoSampler

if TYPE_CHECKING:
    from worldsmith.families.cosmos3.model import Cosmos3Generator


class Cosmos3Sampler(VideoSampler):
    model: Cosmos3Generator

    @with_real_values
    def make_scheduler(self) -> Any:
        """UniPC with the published noise levels: a grid from 0.999 down to 0, shifted, and then 0."""
        shift = self.sampling.shift
        if shift is None:
            raise ValueError(
                "the model's noise-schedule shift is not known; give one (released models: 3 at 256, 10 at 720)"
            )
        scheduler = make_unipc_scheduler(shift)
        scheduler.set_timesteps(sigmas=np.linspace(1 - 1 / NOISE_LEVELS, 0, self.sampling.steps + 1)[:-1])
        return scheduler

    @cached_property
    def timesteps(self) -> list[int]:
        """The network's timestep at each step: 1000·σ, rounded down."""
        found: list[int] = self.make_scheduler().timesteps.tolist()
        return found

    def text_ids(self, text: str, *, dropped: bool) -> Sequence[int]:
        return self.model.tokenize(text)

    def num_tokens(self, layout: SampleLayout) -> int:
        return self.model.num_tokens(layout)

    def begin(
        self, conditional: SampleLayout, unconditional: SampleLayout, *, seed: int, condition: Tensor | None
    ) -> Beginning:
        """The condition's latents are the first ones of any clip that begins with it: the VAE is causal."""
        shape = (self.model.config.network.latent_channel, *conditional.latent_shape)
        start = seeded_noise(seed, shape).to(self.model.device)
        if condition is not None:
            start[:, : conditional.condition_frames] = self.model.encode(condition)
        solver = SolverOfTheRest(self.make_scheduler(), start[:, : conditional.condition_frames].clone())
        return Beginning(start, solver, conditional, unconditional)

    def predictor(self, samples: Sequence[Beginning], branches: Sequence[int]) -> Predict:
        layouts = [(s.conditional, s.unconditional)[branch] for branch in branches for s in samples]
        pack = self.model.pack(layouts)
        memory = self.model.network.read_text(pack)

        def velocities(states: list[Tensor], step: int) -> list[Tensor]:
            timestep = float(self.timesteps[step])
            timesteps = torch.full((len(layouts),), timestep, device=self.model.device)
            found: list[Tensor] = self.model.network(pack, states, timesteps, memory)
            return found

        return velocities


class SolverOfTheRest(SchedulerSolver):
    """Leaves the clean leading frames as they are."""

    def __init__(self, scheduler: Any, clean: Tensor) -> None:
        super().__init__(scheduler, torch.Generator())
        self.clean_frames = clean

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        state = super().step(answer, state)
        # The velocity is 0 there, so this only removes the solver's rounding.
        state[:, : self.clean_frames.shape[1]] = self.clean_frames
        return state


def seeded_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise, float32, that depends on nothing but seed and shape: Philox is the same everywhere."""
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    return torch.from_numpy(stream.standard_normal(shape, dtype=np.float32))
