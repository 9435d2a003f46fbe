"""`VideoSample`: one window of a clip, from the loader to the loss, with pixels or latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from worldsmith.data.stream.sample_maker import ThroughPipe

if TYPE_CHECKING:
    from torch import Tensor


FirstFrames = Literal["none", "encoded in every epoch", "cached", "opening", "opening and pixels"]
"""Form of the first frame that a sample contains in addition to its clip, as a conditioning image. "none": no first
frame; "encoded in every epoch": pixels; "cached": latents of the frame; "opening": latents of a clip that has the frame
first and zeros after it; "opening and pixels": these latents, and the pixels of the frame. Latents are from the cache;
pixels replace latents that are not cached."""


@dataclass(slots=True)
class RobotActions(ThroughPipe):
    """Actions of a robot during the frames of a clip: rows of numbers, which the network sees as one token each.

    The first `clean_rows` rows are given (history, state of the robot, or all rows of forward dynamics); the others are
    predicted.
    """

    rows: Tensor
    """Normalized values, float32 [rows, channels]."""
    clean_rows: int
    """Number of leading rows that get no noise and have no loss."""
    offset: int
    """Frame of row 0, in steps of `fps`: 1, since the first action leads to frame 1; 0 if row 0 is the state of the
    robot; below 0 with history."""
    domain: int
    """Embodiment domain, which selects the weights of the action heads."""
    fps: float
    """Rows per second."""


@dataclass(slots=True)
class VideoSample(ThroughPipe):
    """Training sample of a clip window: caption, and either pixels (`video`) or cached latents (`latents`)."""

    key: str
    """`<uuid>_w<window index>`."""
    position: int
    """Position in the endless stream of samples (epoch * len(dataset) + i), from which all random choices of the
    sample are seeded."""
    text_ids: list[int]
    """Token IDs of the caption with chat template, truncated; packing appends end-of-text and vision-start."""
    caption: str
    """The text of the caption."""
    video: Tensor | None
    """Pixels, uint8 [3, T, H, W]; None if the clip is not decoded, as when the latents are cached."""
    latents: Tensor | None
    """Normalized latents from the cache, float32 [C, t, h, w]; None if they are not cached."""
    latent_shape: tuple[int, int, int]
    """(t, h, w) of the latents."""
    size: tuple[int, int]
    """(H, W) in pixels."""
    num_frames: int
    """Number of frames T of the clip."""
    fps: float
    """Frame rate that the model gets: that of the used frames, or `conditioning_fps` of the config."""
    condition_frames: int
    """Number of clean leading latent frames: 0 text-to-video, 1 image-to-video, 2 video-to-video; with robot actions
    also all frames (inverse dynamics)."""
    num_tokens: int
    """Tokens that count toward the token limit of a pack (`LatentGrid.sample_tokens`)."""
    cache_key: str | None
    """Key of the latents in the cache; None when the cache is off."""
    resolution: str
    """Resolution of the dataset: a bucket such as "256", or a size such as "720x480"."""
    image: VideoSample | None = None
    """The first frame as a separate sample, if the task conditions on it (see `FirstFrames`)."""
    actions: RobotActions | None = None
    """Actions of a robot during the clip; None: a plain video."""
