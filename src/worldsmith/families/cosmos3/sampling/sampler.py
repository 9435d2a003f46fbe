"""`Cosmos3Sampler`: UniPC over packs of samples, of which leading latent frames may be given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from worldsmith.families.cosmos3.sampling.unipc import Schedule, UniPC, flow_schedule
from worldsmith.models.video_model import Beginning, Predict, SampleLayout, VideoSampler

if TYPE_CHECKING:
    from worldsmith.families.cosmos3.model import Cosmos3Generator


class Cosmos3Sampler(VideoSampler):
    model: Cosmos3Generator

    @cached_property
    def schedule(self) -> Schedule:
        shift = self.sampling.shift
        if shift is None:
            raise ValueError(
                "the model's noise-schedule shift is not known; give one (released models: 3 at 256, 10 at 720)"
            )
        return flow_schedule(self.sampling.steps, shift)

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
        solver = SolverOfTheRest(self.schedule, start[:, : conditional.condition_frames].clone())
        return Beginning(start, solver, conditional, unconditional)

    def predictor(self, samples: Sequence[Beginning], branches: Sequence[int]) -> Predict:
        layouts = [(s.conditional, s.unconditional)[branch] for branch in branches for s in samples]
        pack = self.model.pack(layouts)
        memory = self.model.network.read_text(pack)

        def velocities(states: list[Tensor], step: int) -> list[Tensor]:
            timestep = float(self.schedule.timesteps[step])
            timesteps = torch.full((len(layouts),), timestep, device=self.model.device)
            found: list[Tensor] = self.model.network(pack, states, timesteps, memory)
            return found

        return velocities


class SolverOfTheRest(UniPC):
    """Leaves the clean leading frames as they are."""

    def __init__(self, schedule: Schedule, clean: Tensor) -> None:
        super().__init__(schedule)
        self.clean_frames = clean

    def step(self, velocity: Tensor, sample: Tensor) -> Tensor:
        state = super().step(velocity, sample)
        # The velocity is 0 there, so this only removes the solver's rounding.
        state[:, : self.clean_frames.shape[1]] = self.clean_frames
        return state


def seeded_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise, float32, that depends on nothing but seed and shape: Philox is the same everywhere."""
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    return torch.from_numpy(stream.standard_normal(shape, dtype=np.float32))
