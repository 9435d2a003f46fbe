"""Reads frames of a clip as arrays, at the training size or at their original size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

from worldsmith.data.video_decoder import VideoInfo, examine, pick

Resampling = Literal["training", "inference"]

# BITEXACT: the same pixels on every processor, so a run that is resumed on another machine reads the same data.
SCALING = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT


def read_frames(path: str, info: VideoInfo, indices: Sequence[int], framing: Framing) -> np.ndarray:
    """Returns frames of a clip as uint8 [3, T, H, W], upright, and resized and cropped to the size of the framing.

    Args:
        path: Path, or address of a tar member.
        info: Metadata of the file, from `examine`.
        indices: Frame indices in ascending order.
        framing: Target size and resampling.

    Raises:
        SampleError: If the clip is missing, damaged or truncated.
    """
    width, height = framing.size
    out = np.empty((3, len(indices), height, width), np.uint8)
    for done, frame in enumerate(pick(path, info, indices)):
        out[:, done] = framing(frame, info.rotation)
    return out


def read_opening(path: str, count: int) -> np.ndarray:
    """Reads the first `count` frames of a clip, or all if it is shorter, as uint8 [3, T, H, W], upright and unscaled.

    Raises:
        SampleError: If the clip cannot be read.
    """
    _, info = examine(path)
    return read_upright(path, info, range(min(count, info.num_frames)))


def read_ending(path: str, count: int) -> np.ndarray:
    """Reads the last `count` frames of a clip, or all if it is shorter, as uint8 [3, T, H, W], upright and unscaled.

    Raises:
        SampleError: If the clip cannot be read.
    """
    _, info = examine(path)
    return read_upright(path, info, range(max(0, info.num_frames - count), info.num_frames))


def read_upright(path: str, info: VideoInfo, indices: Sequence[int]) -> np.ndarray:
    """Returns the frames with the ascending `indices` as uint8 [3, T, H, W], upright and unscaled.

    Args:
        path: Path, or address of a tar member.
        info: Metadata of the file, from `examine`.
        indices: Frame indices in ascending order.

    Raises:
        SampleError: If the clip is missing, damaged or truncated.
    """
    frames = [
        np.rot90(frame.to_ndarray(format="rgb24", threads=1), info.rotation) for frame in pick(path, info, indices)
    ]
    return np.stack(frames).transpose(3, 0, 1, 2)


class Framing:
    """Converts frames to one size: rotated upright, resized to cover the size, center-cropped.

    - "training": bicubic, directly from the decoded frame, sizes rounded: bit for bit libavfilter's `scale` with
      bicubic+accurate_rnd, as in the training code of `cosmos_framework`.
    - "inference": bilinear with antialiasing, from RGB, sizes rounded up, as in the sampling code of
      `cosmos_framework` for conditioning frames.

    Args:
        size: (width, height) in pixels.
        resampling: "training" or "inference".
    """

    def __init__(self, size: tuple[int, int], resampling: Resampling) -> None:
        """Prepares resizing to `size`, (width, height) in pixels."""
        self.size = size
        self.resampling = resampling
        self._reformatter = VideoReformatter()

    def __call__(self, picture: VideoFrame, turns: int = 0) -> np.ndarray:
        """Returns a decoded frame as uint8 [3, H, W] in the target size.

        Args:
            picture: Decoded frame of PyAV.
            turns: Number of counterclockwise quarter turns that make the frame upright.
        """
        width, height = (picture.height, picture.width) if turns % 2 else (picture.width, picture.height)
        crop = cover_and_crop(width, height, self.size, self.resampling)
        scaled = self.scale(picture, *((crop.height, crop.width) if turns % 2 else (crop.width, crop.height)))
        rows, columns = slice(crop.top, crop.top + crop.crop_height), slice(crop.left, crop.left + crop.crop_width)
        return np.rot90(scaled, turns)[rows, columns].transpose(2, 0, 1)

    def scale(self, picture: VideoFrame, width: int, height: int) -> np.ndarray:
        """Returns a decoded frame, not rotated yet, resized to `width` x `height` pixels as uint8 [H, W, 3]."""
        if self.resampling == "training":
            scaled = self._reformatter.reformat(picture, width, height, "rgb24", interpolation=SCALING, threads=1)
            return scaled.to_ndarray()
        return bilinear(picture.to_ndarray(format="rgb24"), width, height)


@dataclass(frozen=True, slots=True)
class CoverCrop:
    """Resize to (width, height), followed by a crop of (crop_width, crop_height) at (left, top), in pixels."""

    width: int
    height: int
    left: int
    top: int
    crop_width: int
    crop_height: int


def cover_and_crop(width: int, height: int, target: tuple[int, int], resampling: Resampling = "training") -> CoverCrop:
    """Returns the smallest resize that covers the target size, and its center crop.

    Args:
        width: Width of the source in pixels.
        height: Height of the source in pixels.
        target: (width, height) in pixels.
        resampling: "training" rounds the resized size, "inference" rounds it up.
    """
    target_width, target_height = target
    whole = round if resampling == "training" else math.ceil
    ratio = max(target_width / width, target_height / height)
    resized_width, resized_height = whole(width * ratio), whole(height * ratio)
    return CoverCrop(
        width=resized_width,
        height=resized_height,
        left=round((resized_width - target_width) / 2),
        top=round((resized_height - target_height) / 2),
        crop_width=target_width,
        crop_height=target_height,
    )


def bilinear(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """Returns an image, uint8 [H, W, 3], resized to `width` x `height` pixels: bilinear with antialiasing."""
    import torch
    from torch.nn import functional as F

    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    scaled = F.interpolate(planes, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
    return scaled[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
