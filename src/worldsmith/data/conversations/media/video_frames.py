"""The frames of a video that a vision tower sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from worldsmith.data.video_file import VideoInfo, pick_few


def read_video(path: str, info: VideoInfo, indices: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """The frames `indices` as uint8 [T, 3, H, W] at `size` = (H, W), upright. Raises SampleError."""
    frames = np.empty((len(indices), 3, *size), np.uint8)
    for number, frame in enumerate(pick_few(path, info, indices)):
        # One thread: starting several for each frame takes far longer than a small frame.
        upright = np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24", threads=1), info.rotation))
        frames[number] = scaled(torch.from_numpy(upright).permute(2, 0, 1)[None], size)[0].numpy()
    return frames


def scaled(pixels: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """uint8 [N, 3, H, W] at another size: bicubic with antialiasing, in integers, as torchvision's resize does it."""
    if tuple(pixels.shape[2:]) == size:
        return pixels
    return F.interpolate(pixels, size=size, mode="bicubic", antialias=True)
