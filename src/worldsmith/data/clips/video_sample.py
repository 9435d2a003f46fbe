"""`VideoSample`: one window of a clip, from the loader to the loss, with pixels or latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from worldsmith.data.stream.sample_maker import ThroughPipe

if TYPE_CHECKING:
    from torch import Tensor


FirstFrames = Literal["none", "encoded in every epoch", "cached", "opening", "opening and pixels"]
"""Conditioning first frame in a sample: none; pixels; cached latents; cached latents of a clip with zeros after the
first frame; or these latents and pixels."""


@dataclass(slots=True)
class VideoSample(ThroughPipe):
    """One window of a clip, ready to be encoded (`video`) or already encoded (`latents`)."""

    key: str
    """`<uuid>_w<window index>`."""
    position: int
    """Position in the endless stream of samples (epoch * len(dataset) + i); it seeds all its randomness."""
    text_ids: list[int]
    """Chat-templated caption ids, truncated; without the end-of-text and vision-start ids that packing appends."""
    caption: str
    """The text of the caption."""
    video: Tensor | None
    """uint8 [3, T, H, W] with T = 4k + 1; None when `latents` is set."""
    latents: Tensor | None
    """float32 [C, t, h, w], normalized; None when `video` is set."""
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
    """Tokens that count toward the token limit of a pack (`LatentGrid.sample_tokens`)."""
    cache_key: str | None
    """Key of the latents in the cache; None when the cache is off."""
    resolution: str
    """Resolution of the dataset: a bucket such as "256", or a size such as "720x480"."""
    image: VideoSample | None = None
    """The first frame as a separate sample, if the task needs it; also in addition to cached `latents`."""
