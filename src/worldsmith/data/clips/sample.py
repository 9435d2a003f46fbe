"""What the loader hands out (`VideoSample`) and what it leaves out (`Rejection`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class VideoSample:
    """One window of one clip, ready to be encoded (`video`) or already encoded (`latents`)."""

    key: str
    """"<uuid>_w<window index>"."""
    position: int
    """Position in the endless stream of samples (epoch * len(dataset) + i); it seeds all randomness of the sample."""
    text_ids: list[int]
    """Chat-templated caption ids, truncated; without the end-of-text and vision-start ids that packing appends."""
    caption: str
    video: Tensor | None
    """uint8 [3, T, H, W] with T = 4k + 1; None when `latents` is set."""
    latents: Tensor | None
    """float32 [C, t, h, w], normalised; None when `video` is set."""
    latent_shape: tuple[int, int, int]
    """(t, h, w) of the latents."""
    size: tuple[int, int]
    """(H, W) in pixels."""
    num_frames: int
    """T."""
    fps: float
    """Conditioning fps: original / interval, or the fixed `conditioning_fps`."""
    condition_frames: int
    """Clean leading latent frames: 0 text-to-video, 1 image-to-video, 2 video-to-video."""
    num_tokens: int
    """Tokens that count against the cap of a pack (`token_count.sample_tokens`)."""
    cache_key: str | None
    """Where to store the latents after encoding; None when the cache is off."""
    resolution: str
    """Resolution tier, e.g. "256"."""


@dataclass(slots=True, frozen=True)
class Rejection:
    """A sample, or a line of the data set file, that is left out."""

    key: str
    """Key of the sample; "<file name>:<line>" when the line has no usable uuid."""
    reason: str
    """Short slug, e.g. missing_file, not_a_video, truncated, bad_json, no_caption."""
    detail: str
    path: str
    line: int | None = None
    """Line number in the data set file, when that is what is wrong."""

    @property
    def is_filter(self) -> bool:
        """True when the sample is sound and only outside the limits that the config sets."""
        return self.reason in FILTER_REASONS


FILTER_REASONS = frozenset({"too_short", "too_long", "too_small", "over_token_cap"})
