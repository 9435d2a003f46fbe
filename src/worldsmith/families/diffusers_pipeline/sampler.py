"""`SchedulerSampler`: sampling with the schedulers of diffusers, draw by draw as its pipelines do it."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from worldsmith.models.real_values import real_values, with_real_values
from worldsmith.models.video_model import Beginning, Predict, SampleLayout, VideoSampler

if TYPE_CHECKING:
    from worldsmith.families.diffusers_pipeline.model import PipelineModel


class SchedulerSampler(VideoSampler):
    """Every sample has its own scheduler, and a generator of its seed for all that is drawn: given to a pipeline, a
    generator of that seed makes the same.

    Samples of one shape go through the network together.
    """

    model: PipelineModel

    @abstractmethod
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        """A scheduler of diffusers whose timesteps are set; None: for any shape."""

    @property
    def skipped(self) -> int:
        """Steps at the beginning that a given video does not go through."""
        steps, strength = self.sampling.steps, self.sampling.strength
        return 0 if strength is None else steps - min(int(steps * strength), steps)

    @property
    def scales(self) -> Sequence[float]:
        return [self.sampling.guidance] * (self.sampling.steps - self.skipped)

    def text_ids(self, text: str, *, dropped: bool) -> Sequence[int]:
        if dropped and self.model.config.text_encoder.dropped_captions == "zeros":
            return ()
        found: Sequence[int] = self.model.text_encoder.reader(text)
        return found

    def load_texts(self, texts: Sequence[Sequence[int]]) -> None:
        for ids in texts:
            self.model.read([ids or None], self.model.text_cache)

    def num_tokens(self, layout: SampleLayout) -> int:
        _, _, patch, *more = self.model.latent_grid
        patches = (more[1] if len(more) > 1 else 1, patch, patch)
        tokens: int = self.model.config.text_encoder.max_length
        return tokens + math.prod(-(-side // size) for side, size in zip(layout.latent_shape, patches))

    def begin(
        self, conditional: SampleLayout, unconditional: SampleLayout, *, seed: int, condition: Tensor | None
    ) -> Beginning:
        draws = torch.Generator().manual_seed(seed)
        solver = self.make_solver(self.make_scheduler(conditional.latent_shape), draws)
        state, shown = self.start(conditional, solver, condition)
        return Beginning(state, solver, conditional, unconditional, shown)

    def make_solver(self, scheduler: Any, draws: torch.Generator) -> SchedulerSolver:
        return SchedulerSolver(scheduler, draws, self.skipped)

    def start(self, layout: SampleLayout, solver: SchedulerSolver, condition: Tensor | None) -> tuple[Tensor, Any]:
        """The first state, and what the network is shown beside it. Here: noise, and nothing."""
        shape = (self.model.latent_channels, *layout.latent_shape)
        return solver.noise(shape).to(self.model.device), None

    def beside(self, samples: Sequence[Beginning]) -> dict[str, Any]:
        """What `predict` is given of these samples beside states and texts."""
        return {}

    def predictor(self, samples: Sequence[Beginning], branches: Sequence[int]) -> Predict:
        jobs = [(sample, branch) for branch in branches for sample in samples]
        ids = [(sample.conditional, sample.unconditional)[branch].text_ids for sample, branch in jobs]
        texts = self.model.read([found or None for found in ids], self.model.text_cache)
        groups: dict[tuple[int, int, int], list[int]] = {}
        for place, (sample, _) in enumerate(jobs):
            groups.setdefault(sample.conditional.latent_shape, []).append(place)

        def answers(states: list[Tensor], step: int) -> list[Tensor]:
            found: dict[int, Tensor] = {}
            for places in groups.values():
                alike = [jobs[place][0] for place in places]
                timesteps = torch.stack([solver_of(sample).timesteps[step] for sample in alike]).to(states[0].device)
                noisy = torch.stack([states[place] for place in places])
                made = self.model.predict(noisy, timesteps, texts[places], **self.beside(alike))
                found.update(zip(places, made.float()))
            return [found[place] for place in range(len(jobs))]

        return answers


class FlowMatchSampler(SchedulerSampler):
    """Euler's method of diffusers, for a model whose defaults are `FlowMatchDefaults`."""

    @with_real_values
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        defaults, steps = self.model.defaults, self.sampling.steps
        scheduler = defaults.make_scheduler(self.sampling.shift)
        patch = self.model.latent_grid[2]
        tokens = math.prod(latent_shape) // patch**2 if latent_shape else defaults.base_image_seq_len
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=defaults.log_shift(tokens))
        return scheduler

    def beside(self, samples: Sequence[Beginning]) -> dict[str, Any]:
        """`fps`: frames per second of each sample."""
        return {"fps": [sample.conditional.fps for sample in samples]}


class SchedulerSolver:
    """One of diffusers' schedulers, which draws from a generator, for one sample [C, t, h, w]."""

    def __init__(self, scheduler: Any, draws: torch.Generator, skipped: int = 0) -> None:
        self.scheduler, self.draws = scheduler, draws
        self.timesteps: Tensor = scheduler.timesteps[skipped:]
        self.index = 0
        if hasattr(scheduler, "set_begin_index"):  # without it, a first timestep that occurs twice skips a step
            scheduler.set_begin_index(skipped)
        draws_itself = "generator" in inspect.signature(scheduler.step).parameters
        self.arguments: dict[str, Any] = {"generator": draws} if draws_itself else {}

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal noise [C, t, h, w], as the pipeline draws it."""
        with real_values():
            return torch.randn((1, *shape), generator=self.draws)[0]

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        timestep = self.timesteps[self.index]
        self.index += 1
        return self.advance(answer[None], timestep, state[None])[0]

    def advance(self, answer: Tensor, timestep: Tensor, state: Tensor) -> Tensor:
        """The next state of a batch."""
        moved: Tensor = self.scheduler.step(answer, timestep, state, **self.arguments, return_dict=False)[0]
        return moved


def solver_of(sample: Beginning) -> SchedulerSolver:
    assert isinstance(sample.solver, SchedulerSolver)
    return sample.solver
