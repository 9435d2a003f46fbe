"""Samplers that use diffusers' schedulers, and their defaults.

Torch and numpy are imported on first use, so that a config can be checked without them.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.models.real_values import real_values
from worldsmith.models.video_model import GenerationDefaults, InitialState, Predict, SampleLayout, VideoSampler

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.families.diffusers_pipeline.model import PipelineModel

SCHEDULER = "FlowMatchEulerDiscreteScheduler"
FROM_TEXT = "this model generates from text only"
DYNAMIC = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "shift_terminal")


class SchedulerSampler(VideoSampler):
    """Base class of samplers with a diffusers scheduler and one seeded random generator per sample.

    A diffusers pipeline that is given a generator with the same seed produces the same result. Samples with the same
    shape share a forward pass.
    """

    model: PipelineModel

    @abstractmethod
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        """Builds a diffusers scheduler and sets its timesteps.

        Args:
            latent_shape: Latent shape (t, h, w) of the samples, which can affect the shift; None: a default shape.
        """

    @property
    def skipped(self) -> int:
        """Number of solver steps that are skipped at the start of sampling from a given video (video-to-video)."""
        steps, strength = self.sampling.steps, self.sampling.strength
        return 0 if strength is None else steps - min(int(steps * strength), steps)

    @property
    def scales(self) -> Sequence[float]:
        return [self.sampling.guidance] * (self.sampling.steps - self.skipped)

    def text_ids(self, text: str, *, dropped: bool) -> Sequence[int]:
        if dropped and self.model.config.text_encoder.dropped_captions == "zeros":
            return ()
        return self.model.text_encoder.reader(text)

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
    ) -> InitialState:
        import torch

        draws = torch.Generator().manual_seed(seed)
        solver = self.make_solver(self.make_scheduler(conditional.latent_shape), draws)
        state, shown = self.start(conditional, solver, condition)
        return InitialState(state, solver, conditional, unconditional, shown)

    def make_solver(self, scheduler: Any, draws: torch.Generator) -> SchedulerSolver:
        return SchedulerSolver(scheduler, draws, self.skipped)

    def start(self, layout: SampleLayout, solver: SchedulerSolver, condition: Tensor | None) -> tuple[Tensor, Any]:
        """Returns the initial state [C, t, h, w], and the conditioning input of the network; by default noise and None.

        Args:
            layout: Layout of the sample.
            solver: Solver of the sample, which samples the noise.
            condition: Conditioning frames, uint8 [3, T, H, W]; None: text only.
        """
        shape = (self.model.latent_channels, *layout.latent_shape)
        return solver.noise(shape).to(self.model.device), None

    def extra_inputs(self, samples: Sequence[InitialState]) -> dict[str, Any]:
        """Returns further arguments of the model's `predict` for these samples, by name; by default {}."""
        return {}

    def predictor(self, samples: Sequence[InitialState], branches: Sequence[int]) -> Predict:
        import torch

        jobs = [(sample, branch) for branch in branches for sample in samples]
        ids = [(sample.conditional, sample.unconditional)[branch].text_ids for sample, branch in jobs]
        texts = self.model.read([found or None for found in ids], self.model.text_cache)
        groups: dict[tuple[int, int, int], list[int]] = {}
        for index, (sample, _) in enumerate(jobs):
            groups.setdefault(sample.conditional.latent_shape, []).append(index)

        def predict(states: list[Tensor], step: int) -> list[Tensor]:
            found: dict[int, Tensor] = {}
            for indices in groups.values():
                alike = [jobs[index][0] for index in indices]
                timesteps = torch.stack([solver_of(sample).timesteps[step] for sample in alike]).to(states[0].device)
                noisy = torch.stack([states[index] for index in indices])
                outputs = self.model.predict(noisy, timesteps, texts[indices], **self.extra_inputs(alike))
                found.update(zip(indices, outputs.float()))
            return [found[index] for index in range(len(jobs))]

        return predict


class FlowMatchSampler(SchedulerSampler):
    """Sampler with diffusers' Euler scheduler for flow matching; the model's defaults must be `FlowMatchDefaults`."""

    @real_values()
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        import numpy as np

        defaults, steps = self.model.defaults, self.sampling.steps
        scheduler = defaults.make_scheduler(self.sampling.shift)
        patch = self.model.latent_grid[2]
        tokens = math.prod(latent_shape) // patch**2 if latent_shape else defaults.base_image_seq_len
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=defaults.log_shift(tokens))
        return scheduler

    def extra_inputs(self, samples: Sequence[InitialState]) -> dict[str, Any]:
        """Returns {"fps": list with the frame rate of each sample}, a further argument of the model's `predict`."""
        return {"fps": [sample.conditional.fps for sample in samples]}


class SchedulerSolver:
    """Solver of one sample [C, t, h, w]: a diffusers scheduler with its own random generator."""

    def __init__(self, scheduler: Any, draws: torch.Generator, skipped: int = 0) -> None:
        self.scheduler, self.draws = scheduler, draws
        self.timesteps: Tensor = scheduler.timesteps[skipped:]
        self.index = 0
        if hasattr(scheduler, "set_begin_index"):  # without it, a first timestep that occurs twice skips a step
            scheduler.set_begin_index(skipped)
        draws_itself = "generator" in inspect.signature(scheduler.step).parameters
        self.arguments: dict[str, Any] = {"generator": draws} if draws_itself else {}

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        """Samples standard normal noise of `shape` (C, t, h, w), with the same values as in the diffusers pipeline."""
        import torch

        with real_values():
            return torch.randn((1, *shape), generator=self.draws)[0]

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        timestep = self.timesteps[self.index]
        self.index += 1
        return self.advance(answer[None], timestep, state[None])[0]

    def advance(self, answer: Tensor, timestep: Tensor, state: Tensor) -> Tensor:
        """Takes one scheduler step for a batch of one sample and returns its next state [1, C, t, h, w].

        Args:
            answer: Network output [1, C, t, h, w].
            timestep: Current timestep.
            state: Current state [1, C, t, h, w].
        """
        return self.scheduler.step(answer, timestep, state, **self.arguments, return_dict=False)[0]


@dataclass(frozen=True, slots=True)
class PipelineDefaults(GenerationDefaults):
    """Default generation settings of a model with a diffusers pipeline."""

    captions_as_given: bool = True
    """Whether prompts are used unchanged, as for released weights; false: in the format of the training captions,
    such as with a final period."""

    @property
    def ends_captions(self) -> bool:
        return not self.captions_as_given


@dataclass(frozen=True, slots=True)
class FlowMatchDefaults(PipelineDefaults):
    """Default generation settings of models that sample with diffusers' `FlowMatchEulerDiscreteScheduler`.

    The shift of the schedule grows with the number of tokens of a sample, unless `shift` is given.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "scheduler": "sampling is Euler's method",
        "dynamic_guidance": "its guidance scale is the same at every step",
        "strength": FROM_TEXT,
        "condition_frame_indexes_vision": FROM_TEXT,
        "condition_video_keep": FROM_TEXT,
    }
    shift_of_size: ClassVar[bool] = True

    base_shift: float = 0.5
    """ln(shift) of the noise schedule for samples of `base_image_seq_len` tokens; linear in the tokens."""
    max_shift: float = 1.15
    """ln(shift) of the noise schedule for samples of `max_image_seq_len` tokens."""
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    shift_terminal: float | None = None
    """Noise level of the last solver step, to which the schedule is stretched as in diffusers; None: no stretching."""

    def log_shift(self, tokens: int) -> float:
        """Computes ln(shift) of the noise schedule for a sample of `tokens` tokens."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return tokens * slope + (self.base_shift - slope * self.base_image_seq_len)

    def make_scheduler(self, shift: float | None) -> Any:
        """Builds the diffusers scheduler with a fixed shift; None: the shift depends on the size of each sample."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        return FlowMatchEulerDiscreteScheduler(
            shift=3.0 if shift is None else shift,  # 3.0: as released, has no effect
            use_dynamic_shifting=shift is None,
            **{name: getattr(self, name) for name in DYNAMIC},
        )


def read_schedule(folder: Path) -> dict[str, Any]:
    """Returns fields of `FlowMatchDefaults` from the scheduler config of a pipeline; {} if the file does not exist.

    Raises:
        UserError: If the scheduler is not `FlowMatchEulerDiscreteScheduler`.
    """
    file = folder / "scheduler" / "scheduler_config.json"
    if not file.is_file():
        return {}
    stated: Mapping[str, Any] = read_json_object(file)
    if stated.get("_class_name") != SCHEDULER:
        raise UserError(f"{file}: expected {SCHEDULER}, found {stated.get('_class_name')}")
    if not stated.get("use_dynamic_shifting", False):
        return {"shift": float(stated.get("shift", 1.0)), "shift_terminal": stated.get("shift_terminal")}
    return {"shift": None, **{name: stated[name] for name in DYNAMIC if name in stated}}


def make_unipc_scheduler(shift: float) -> Any:
    """Builds the scheduler of the released Wan and Cosmos3 pipelines: UniPC of order 2 for flow matching."""
    import diffusers

    library: Any = diffusers  # its classes carry no types
    return library.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)


def solver_of(sample: InitialState) -> SchedulerSolver:
    assert isinstance(sample.solver, SchedulerSolver)
    return sample.solver
