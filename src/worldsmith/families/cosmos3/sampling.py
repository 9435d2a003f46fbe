"""Sampling from Cosmos3 with UniPC: packs of samples whose first latent frames may be given.

Torch and numpy are imported on first use, so that a config can be checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.families.diffusers_pipeline.sampling import SchedulerSolver, make_unipc_scheduler
from worldsmith.models.real_values import with_real_values
from worldsmith.models.video_model import (
    NOISE_LEVELS,
    Beginning,
    GenerationDefaults,
    Predict,
    SampleLayout,
    VideoSampler,
)

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.families.cosmos3.model import Cosmos3Generator

IMAGE_STEPS, IMAGE_GUIDANCE, IMAGE_FPS = 50, 4.0, 24.0
"""Released settings for a single image."""


class Cosmos3Sampler(VideoSampler):
    """Samples packs of videos and images with UniPC."""

    model: Cosmos3Generator

    @with_real_values
    def make_scheduler(self) -> Any:
        """Builds UniPC with the released noise levels: a grid from 0.999 down to 0, shifted, and then 0."""
        import numpy as np

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
        """Returns the first state; its first latent frames are those of the condition, since the VAE is causal."""
        shape = (self.model.config.network.latent_channel, *conditional.latent_shape)
        start = seeded_noise(seed, shape).to(self.model.device)
        if condition is not None:
            start[:, : conditional.condition_frames] = self.model.encode(condition)
        solver = CleanFramesSolver(self.make_scheduler(), start[:, : conditional.condition_frames].clone())
        return Beginning(start, solver, conditional, unconditional)

    def predictor(self, samples: Sequence[Beginning], branches: Sequence[int]) -> Predict:
        import torch

        layouts = [(s.conditional, s.unconditional)[branch] for branch in branches for s in samples]
        pack = self.model.pack(layouts)
        memory = self.model.network.read_text(pack)

        def velocities(states: list[Tensor], step: int) -> list[Tensor]:
            timestep = float(self.timesteps[step])
            timesteps = torch.full((len(layouts),), timestep, device=self.model.device)
            found: list[Tensor] = self.model.network(pack, states, timesteps, memory)
            return found

        return velocities


class CleanFramesSolver(SchedulerSolver):
    """Solver of one sample that keeps the clean first frames unchanged."""

    def __init__(self, scheduler: Any, clean: Tensor) -> None:
        import torch

        super().__init__(scheduler, torch.Generator())
        self.clean_frames = clean

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        state = super().step(answer, state)
        # The velocity is 0 there, so this only removes the solver's rounding.
        state[:, : self.clean_frames.shape[1]] = self.clean_frames
        return state


@dataclass(frozen=True, slots=True)
class Cosmos3Defaults(GenerationDefaults):
    """Generation settings of Cosmos3 where the user gives none."""

    refused: ClassVar[Mapping[str, str]] = {
        "scheduler": "sampling is UniPC",
        "dynamic_guidance": "sampling is UniPC with the same guidance at every step",
        "strength": "frames that are given stay as they are (condition_frame_indexes_vision says how many)",
    }

    def of_image(self) -> GenerationDefaults:
        return replace(
            self,
            steps=IMAGE_STEPS,
            guidance=IMAGE_GUIDANCE,
            shift=self.shift if self.image_shift is None else self.image_shift,
            fps=IMAGE_FPS if self.fps is None else self.fps,
        )


def seeded_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Draws standard normal float32 noise that depends only on seed and shape: Philox is the same everywhere."""
    import numpy as np
    import torch

    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    return torch.from_numpy(stream.standard_normal(shape, dtype=np.float32))
