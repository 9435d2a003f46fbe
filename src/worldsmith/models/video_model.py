"""Interface of a model for video generation, and its defaults from training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Mode = Literal["text2image", "text2video", "image2video", "video2video"]
MODES: tuple[Mode, ...] = get_args(Mode)
DynamicGuidance = Literal["off", "by_timestep", "by_step"]
NOISE_LEVELS = 1000
"""Number of discrete noise levels; with more solver steps some would repeat."""
Predict = Callable[["list[Tensor]", int], "list[Tensor]"]
"""Maps the states of samples (all guidance branches) and the step index to network outputs."""


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Layout of one sample that a network needs before its latents: sizes, captions, conditioning."""

    text_ids: Sequence[int]
    """Ids of the caption, from the family's `text_ids`, without tokens that a network appends."""
    latent_shape: tuple[int, int, int]
    """(t, h, w) of the latent, before patching."""
    fps: float | None
    """Frames per second of the video; None makes every latent frame one position step."""
    condition_frames: int = 0
    """Clean leading latent frames (0 text-to-video, 1 image-to-video, 2 video-to-video)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings of samples that share forward passes."""

    steps: int
    """Steps of the solver."""
    guidance: float
    """Scale g of classifier-free guidance, u + g·(c - u); 1 needs no unconditional branch."""
    shift: float | None = None
    """Shift of the noise schedule; None: unknown, or not applicable."""
    scheduler: str | None = None
    """Scheduler of the model family; None: the family has only one."""
    dynamic_guidance: str | None = None
    """Schedule of the guidance scale over the solver steps; None: constant."""
    strength: float | None = None
    """Fraction of the steps that a given video is regenerated through, from noise; None: no complete video is given."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults for generation, from the training data of a model. None: not known."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Sample settings that the family does not support, with the reason."""
    schedulers: ClassVar[tuple[str, ...]] = ()
    """Scheduler names that a sample may choose from."""
    shift_of_size: ClassVar[bool] = False
    """Whether the size of a sample determines its shift if none is given."""

    height: int | None = None
    """Pixels."""
    width: int | None = None
    """Pixels."""
    num_frames: int | None = None
    """Number of frames of a clip."""
    fps: float | None = None
    """Frame rate (fps) that the network and the text get."""
    shift: float | None = None
    """Shift of the noise schedule at this size."""
    steps: int = 35
    """Sampling steps."""
    guidance: float = 6.0
    """Scale of classifier-free guidance; 1 disables it."""
    append_duration_fps: bool = False
    """Whether plain captions were followed by the sentence on duration and frame rate."""
    append_resolution: bool = False
    """Whether plain captions were followed by the sentence on height and width."""
    caption_suffix: str = ""
    """Text between a plain caption and those sentences."""
    unconditional_keeps_metadata: bool = False
    """Whether captions dropped in training kept those sentences."""
    max_caption_tokens: int | None = None
    """Max caption ids; longer captions were truncated."""
    structured_metadata: bool = False
    """Whether structured captions contained duration, frame rate, size and aspect ratio."""
    image_shift: float | None = None
    """Shift for a single image; None: the same."""

    @property
    def ends_captions(self) -> bool:
        """Whether plain captions got a period at their end where they had none."""
        return True

    def image_defaults(self) -> GenerationDefaults:
        """Returns the defaults for a single image."""
        return self

    def sampling(self, **said: Any) -> Sampling:
        """Returns the settings that are said; those that are None, or not said, are the model's.

        Raises ValueError for one that the family does not have.
        """
        self.refuse(said)
        given = {name: value for name, value in said.items() if value is not None}
        own = {field.name: getattr(self, field.name, None) for field in fields(Sampling)}
        return Sampling(**{**own, **given})

    def refuse(self, said: Mapping[str, Any]) -> None:
        """Raises ValueError for a setting that the family does not have, or a scheduler that it does not know.

        None is not said.
        """
        for name, value in said.items():
            if value is not None and name in self.refused:
                raise ValueError(f"{name}: {self.refused[name]}; omit it")
        scheduler = said.get("scheduler")
        if scheduler is not None and scheduler not in self.schedulers:
            raise ValueError(f"scheduler: expected {' or '.join(self.schedulers)}, found {scheduler}")


class Solver(Protocol):
    """Moves one sample from noise level to noise level."""

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        """Returns the next state out of the network's answer, guided, to the last one."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A sample before its first step."""

    state: Tensor
    """Initial noise, float32 on the model's device, [C, t, h, w] or the network's own layout."""
    solver: Solver
    conditional: SampleLayout
    unconditional: SampleLayout
    shown: Any = None
    """Conditioning inputs of the network, in the format of the model family."""


class VideoSampler(ABC):
    """Sampler of a model with given settings.

    Raises:
        ValueError: If the model does not support the settings.
    """

    def __init__(self, model: Any, sampling: Sampling) -> None:
        self.model, self.sampling = model, sampling

    @property
    def scales(self) -> Sequence[float]:
        """The scale of guidance at each step; 1 at all of them: there is no unconditional branch."""
        return [self.sampling.guidance] * self.sampling.steps

    @abstractmethod
    def text_ids(self, text: str, *, dropped: bool) -> Sequence[int]:
        """Ids of a caption. `dropped`: it is what training showed for no caption."""

    def load_texts(self, texts: Sequence[Sequence[int]]) -> None:
        """Encodes texts, so that sampling finds them in a cache if the model has one. Here: nothing to encode."""
        return

    @abstractmethod
    def num_tokens(self, layout: SampleLayout) -> int:
        """Returns the number of tokens of one guidance branch of a sample, counted against the model's `max_tokens`."""

    @abstractmethod
    def begin(
        self, conditional: SampleLayout, unconditional: SampleLayout, *, seed: int, condition: Tensor | None
    ) -> Beginning:
        """Returns the initial state: noise from `seed`, and the conditioning frames `condition`, uint8 [3, T, H, W]."""

    @abstractmethod
    def predictor(self, samples: Sequence[Beginning], branches: Sequence[int]) -> Predict:
        """Returns the network on these samples in these branches (0 conditional, 1 unconditional), one after the other.

        What does not change from step to step, such as the texts, is computed once, here.
        """

    def finish(self, sample: Beginning, state: Tensor) -> Tensor:
        """Returns the latents [C, t, h, w] that are decoded, out of the last state."""
        return state


class VideoModel(Protocol):
    """A network whose videos are sampled, with its VAE."""

    defaults: GenerationDefaults
    device: torch.device

    @property
    def latent_grid(self) -> tuple[int, ...]:
        """Frames of a latent frame, pixels of a latent cell, latent cells of a token; see `LatentGrid`."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of one forward pass."""

    def sampler(self, sampling: Sampling) -> VideoSampler: ...

    def decode(self, latents: Tensor) -> Tensor:
        """Decodes normalized latents [C, t, h, w] to a uint8 video [3, T, H, W]."""
