"""What generating videos asks of a model, and what a model tells of its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Velocities = Callable[["list[Tensor]", float], "list[Tensor]"]
"""From the states of all samples, [C, t, h, w] each, and a timestep to their velocities."""


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """What a network must know of one sample before it sees its latents."""

    text_ids: Sequence[int]
    """Chat-templated caption ids; what a network puts behind them is its own."""
    latent_shape: tuple[int, int, int]
    """(t, h, w) of the latent, before patching."""
    fps: float | None
    """Frames per second of the video; None makes every latent frame one position step."""
    condition_frames: int = 0
    """Clean leading latent frames (0 text-to-video, 1 image-to-video, 2 video-to-video)."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a model saw in training, as defaults for generating with it. None: not known."""

    height: int | None = None
    """Pixels."""
    width: int | None = None
    """Pixels."""
    num_frames: int | None = None
    """Frames of a clip, 4k+1."""
    fps: float | None = None
    """Frames per second that the network and the text are told."""
    shift: float | None = None
    """Shift of the noise schedule at this size."""
    steps: int = 35
    """Sampling steps."""
    guidance: float = 6.0
    """Scale of classifier-free guidance; 1 turns it off."""
    append_duration_fps: bool = False
    """Whether plain captions were followed by the sentence on duration and frame rate."""
    append_resolution: bool = False
    """Whether plain captions were followed by the sentence on height and width."""
    caption_suffix: str = ""
    """Text between a plain caption and those sentences."""
    unconditional_keeps_metadata: bool = False
    """Whether captions dropped in training kept those sentences."""
    max_caption_tokens: int | None = None
    """Chat-templated ids past this number were cut."""
    structured_metadata: bool = False
    """Whether structured captions held duration, frame rate, size and aspect ratio of what they were shown with."""
    image_shift: float | None = None
    """Shift for a single image; None: the same."""


class VideoModel(Protocol):
    """A network that predicts velocities of latents, with its VAE and its tokenizer."""

    defaults: GenerationDefaults
    device: torch.device

    @property
    def latent_grid(self) -> tuple[int, int, int]:
        """Frames of a latent frame, pixels of a latent cell, latent cells of a token."""

    @property
    def latent_channels(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """Most tokens of one forward pass."""

    def tokenize(self, caption: str) -> list[int]:
        """Chat-templated ids."""

    def encode(self, video: Tensor) -> Tensor:
        """uint8 video [3, T, H, W] to normalised latents [C, t, h, w], float32."""

    def decode(self, latents: Tensor) -> Tensor:
        """Normalised latents [C, t, h, w] to a uint8 video [3, T, H, W]."""

    def num_tokens(self, layout: SampleLayout) -> int:
        """What a sample takes of `max_tokens`."""

    def velocities(self, layouts: Sequence[SampleLayout]) -> Velocities:
        """The network on these samples, whose texts are read once, for all steps."""
