"""How pictures come to the network's size, in training and in generation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

Resampling = Literal["training", "inference"]

# BITEXACT: the same pixels on every processor, so that a run that is resumed elsewhere sees the same data.
SCALING = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT


@dataclass(frozen=True, slots=True)
class CoverCrop:
    """Resize to (width, height), then cut (crop_width, crop_height) out at (left, top). All in pixels."""

    width: int
    height: int
    left: int
    top: int
    crop_width: int
    crop_height: int


def cover_and_crop(width: int, height: int, target: tuple[int, int], resampling: Resampling = "training") -> CoverCrop:
    """The smallest resize that covers `target` = (width, height), and its centre crop."""
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


class Framing:
    """Brings pictures to one size: turned upright, scaled to cover it, cut around the centre.

    - "training": bicubic, straight from the decoded picture, sizes rounded: bit for bit libavfilter's `scale` with
      bicubic+accurate_rnd, as the published training path does it.
    - "inference": bilinear with antialiasing, from RGB, sizes rounded up, as the published sampling treats conditions.
    """

    def __init__(self, size: tuple[int, int], resampling: Resampling) -> None:
        """`size`: (width, height) in pixels."""
        self.size = size
        self.resampling = resampling
        self._reformatter = VideoReformatter()

    def __call__(self, picture: VideoFrame, turns: int = 0) -> np.ndarray:
        """uint8 [3, H, W]. `turns`: quarter turns counter-clockwise that bring the picture upright."""
        width, height = (picture.height, picture.width) if turns % 2 else (picture.width, picture.height)
        crop = cover_and_crop(width, height, self.size, self.resampling)
        scaled = self._scale(picture, *((crop.height, crop.width) if turns % 2 else (crop.width, crop.height)))
        rows, columns = slice(crop.top, crop.top + crop.crop_height), slice(crop.left, crop.left + crop.crop_width)
        return np.rot90(scaled, turns)[rows, columns].transpose(2, 0, 1)

    def _scale(self, picture: VideoFrame, width: int, height: int) -> np.ndarray:
        """uint8 [H, W, 3], not turned yet."""
        if self.resampling == "training":
            scaled = self._reformatter.reformat(picture, width, height, "rgb24", interpolation=SCALING, threads=1)
            return scaled.to_ndarray()
        return bilinear(picture.to_ndarray(format="rgb24"), width, height)


def bilinear(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """uint8 [H, W, 3] scaled to another size, antialiased, rounded to the nearest value."""
    import torch
    from torch.nn import functional as F

    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    scaled = F.interpolate(planes, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
    return scaled[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
