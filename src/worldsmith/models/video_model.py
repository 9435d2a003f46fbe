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
RobotMode = Literal["wam", "forward_dynamics", "inverse_dynamics"]
ROBOT_MODES: tuple[RobotMode, ...] = get_args(RobotMode)
"""Modes in which robot actions are given or generated, with the names of `cosmos_framework`."""
DynamicGuidance = Literal["off", "by_timestep", "by_step"]
NOISE_LEVELS = 1000
"""Number of discrete noise levels (timesteps); with more solver steps, some levels would repeat."""
Predict = Callable[["list[Tensor]", int], "list[Tensor]"]
"""Function (states, step) -> network outputs, with one tensor per guidance branch and sample."""


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """Number and positions of the robot actions of one sample, see `data.clips.video_sample.RobotActions`."""

    rows: int
    """Number of action rows, each of which is a token."""
    channels: int
    """Number of channels of a row that are used; the others of the network's input are 0."""
    clean_rows: int
    """Number of leading rows that are given, not predicted."""
    offset: int
    """Frame of row 0, in steps of `fps`."""
    domain: int
    """Embodiment domain, which selects the weights of the action heads."""
    fps: float
    """Rows per second."""

    @classmethod
    def of(cls, actions: Any) -> ActionLayout | None:
        """Returns the layout of the `RobotActions` of a sample; None if they are None."""
        if actions is None:
            return None
        rows, channels = actions.rows.shape
        return cls(rows, channels, actions.clean_rows, actions.offset, actions.domain, actions.fps)


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Token ids of the caption, size of the latents, frame rate and number of conditioning frames of one sample.

    The network input of a sample is arranged according to it, in training and in generation.
    """

    text_ids: Sequence[int]
    """Token ids of the caption, without special tokens that the network appends."""
    latent_shape: tuple[int, int, int]
    """Size (latent frames, height, width) of the VAE latents, before the network groups them into patches."""
    fps: float | None
    """Frames per second of the video; None: temporal positions increase by 1 per latent frame."""
    condition_frames: int = 0
    """Number of clean latent frames at the start (0 text-to-video, 1 image-to-video, 2 video-to-video)."""
    actions: ActionLayout | None = None
    """Robot actions of the sample; None: a plain video."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling settings; samples that share forward passes must have equal settings."""

    steps: int
    """Number of solver steps."""
    guidance: float
    """Scale g of classifier-free guidance, u + g·(c - u); 1 needs no unconditional branch."""
    shift: float | None = None
    """Shift of the noise schedule; None: unknown, or not applicable."""
    scheduler: str | None = None
    """Name of the scheduler; None: the model family has only one."""
    dynamic_guidance: str | None = None
    """Schedule of the guidance scale: "by_timestep" or "by_step"; "off" or None: constant."""
    strength: float | None = None
    """Video-to-video: fraction of the steps that are run, from the noised input video; None: start from pure noise."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Default generation settings of a model, as in its training data; a setting that is None is not known."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Reasons why sampling settings are not supported, by setting."""
    schedulers: ClassVar[tuple[str, ...]] = ()
    """Names of the schedulers that the model family supports."""
    shift_of_size: ClassVar[bool] = False
    """Whether the noise schedule's shift, if it is not set, follows from the size of the sample."""

    height: int | None = None
    """Height of a sample in pixels."""
    width: int | None = None
    """Width of a sample in pixels."""
    num_frames: int | None = None
    """Number of frames of a clip."""
    fps: float | None = None
    """Frame rate (fps) that is passed to the network and stated in captions."""
    shift: float | None = None
    """Shift of the noise schedule for the default size."""
    steps: int = 35
    """Number of solver steps."""
    guidance: float = 6.0
    """Scale of classifier-free guidance; 1 disables it."""
    append_duration_fps: bool = False
    """Whether plain captions were followed by the sentence on duration and frame rate."""
    append_resolution: bool = False
    """Whether plain captions were followed by the sentence on height and width."""
    caption_suffix: str = ""
    """Text between a plain caption and the sentences on duration, frame rate and size."""
    unconditional_keeps_metadata: bool = False
    """Whether captions that training dropped kept the sentences on duration, frame rate and size."""
    max_caption_tokens: int | None = None
    """Max number of token ids of a caption; training truncated longer ones. None: not known."""
    structured_metadata: bool = False
    """Whether structured captions contained duration, frame rate, size and aspect ratio."""
    image_shift: float | None = None
    """Shift of the noise schedule for a single image; None: same as for videos."""

    @property
    def ends_captions(self) -> bool:
        """Whether training added a period to plain captions without one; if so, generation adds it to prompts."""
        return True

    def image_defaults(self) -> GenerationDefaults:
        """Returns the defaults for generating a single image."""
        return self

    def sampling(self, **settings: Any) -> Sampling:
        """Returns sampling settings, with the model's defaults for those that are missing or None.

        Args:
            settings: Fields of `Sampling` that the user sets.

        Raises:
            ValueError: If the model family does not support a setting.
        """
        self.refuse(settings)
        given = {name: value for name, value in settings.items() if value is not None}
        own = {field.name: getattr(self, field.name, None) for field in fields(Sampling)}
        return Sampling(**{**own, **given})

    def refuse(self, settings: Mapping[str, Any]) -> None:
        """Raises ValueError if the model family does not support a setting, or the value of the setting `scheduler`.

        Args:
            settings: Sampling settings by name; a setting of None is ignored.
        """
        for name, value in settings.items():
            if value is not None and name in self.refused:
                raise ValueError(f"{name}: {self.refused[name]}; omit it")
        scheduler = settings.get("scheduler")
        if scheduler is not None and scheduler not in self.schedulers:
            raise ValueError(f"scheduler: expected {' or '.join(self.schedulers)}, found {scheduler}")


class Solver(Protocol):
    """Solver for one sample to generate; each call of `step` computes the sample's state at the next noise level."""

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        """Returns the state of the sample at the next noise level.

        The solver counts its calls, so the current noise level is not an argument: call it once per noise level.

        Args:
            answer: Network output (after guidance) for `state`, in the shape of `state`.
            state: Noisy latents at the current noise level: `InitialState.state`, later the result of the last call.
        """


@dataclass(frozen=True, slots=True)
class InitialState:
    """Initial noise, solver and inputs of one sample to generate, before the first solver step."""

    state: Tensor
    """Initial noise, float32 on the model's device, [C, t, h, w] or the network's own layout."""
    solver: Solver
    conditional: SampleLayout
    unconditional: SampleLayout
    shown: Any = None
    """Conditioning inputs of the network, in the format of the model family."""


class VideoSampler(ABC):
    """Base class of samplers: generates samples with a model, with fixed sampling settings.

    Raises:
        ValueError: If the model does not support the settings.
    """

    def __init__(self, model: Any, sampling: Sampling) -> None:
        self.model, self.sampling = model, sampling

    @property
    def scales(self) -> Sequence[float]:
        """Guidance scale of each solver step; if all are 1, there is no unconditional branch."""
        return [self.sampling.guidance] * self.sampling.steps

    @abstractmethod
    def text_ids(self, text: str, *, dropped: bool) -> Sequence[int]:
        """Tokenizes a caption and returns its token ids.

        Args:
            text: The caption.
            dropped: Whether `text` is the text that training used for dropped captions.
        """

    def load_texts(self, texts: Sequence[Sequence[int]]) -> None:
        """Encodes texts, given as token ids, before sampling, and stores the results in the model's cache.

        The base class has no cache and does nothing.
        """
        return

    @abstractmethod
    def num_tokens(self, layout: SampleLayout) -> int:
        """Returns the number of tokens of a sample in one guidance branch, conditional or unconditional."""

    @abstractmethod
    def begin(
        self, conditional: SampleLayout, unconditional: SampleLayout, *, seed: int, condition: Tensor | None
    ) -> InitialState:
        """Builds the initial state of a sample.

        Args:
            conditional: Layout with the prompt.
            unconditional: Layout with the negative prompt.
            seed: Seed of the initial noise.
            condition: Conditioning frames, uint8 [3, T, H, W]; None: text only.
        """

    @abstractmethod
    def predictor(self, samples: Sequence[InitialState], branches: Sequence[int]) -> Predict:
        """Returns a function that evaluates the network; values that all steps share, such as texts, are computed here.

        Args:
            samples: Samples that share forward passes.
            branches: Guidance branches, 0 conditional and 1 unconditional. The function expects and returns one
                tensor per branch and sample: all samples of the first branch, then all samples of the next one.
        """

    def add_actions(self, sample: InitialState, rows: Tensor, *, seed: int) -> InitialState:
        """Adds robot actions to the initial state of a sample, whose layouts have them.

        Args:
            sample: Initial state from `begin`.
            rows: Robot actions [rows, channels], of which the first `ActionLayout.clean_rows` are given.
            seed: Seed of the initial noise of the other rows.

        Raises:
            ValueError: If the model has no robot actions.
        """
        raise ValueError("this model does not generate robot actions")

    def finish(self, sample: InitialState, state: Tensor) -> Tensor:
        """Converts the last state of a sample to the latents [C, t, h, w] that are decoded."""
        return state

    def finish_actions(self, sample: InitialState, state: Tensor) -> Tensor:
        """Returns the robot actions [rows, channels] of the last state of a sample that has some."""
        raise NotImplementedError


class VideoModel(Protocol):
    """Interface of a model that generates videos: a network with its VAE."""

    defaults: GenerationDefaults
    device: torch.device

    @property
    def latent_grid(self) -> tuple[int, ...]:
        """Compression of the VAE and patch size of the network, as arguments of `LatentGrid`.

        They are: frames per latent frame, pixels per latent position (each side), latent positions per token (each
        side), and optionally latent frames that the VAE decodes together and latent frames per token.
        """

    @property
    def max_tokens(self) -> int:
        """Default max number of tokens in one forward pass that several samples share in sampling."""

    def sampler(self, sampling: Sampling) -> VideoSampler: ...

    def decode(self, latents: Tensor) -> Tensor:
        """Decodes normalized latents [C, t, h, w] to a uint8 video [3, T, H, W]."""
