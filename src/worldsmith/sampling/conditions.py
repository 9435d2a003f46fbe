"""What a generated video begins with: a picture, or some frames of a video, from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IMAGES = (".png", ".jpg", ".jpeg", ".webp")


def is_image(path: str) -> bool:
    return Path(path).suffix.lower() in IMAGES


def read_condition(path: str, frames: int, *, last: bool = False) -> Tensor:
    """The picture, or the first (or last) `frames` of the video, uint8 [3, T, H, W], upright and of its own size.

    Raises ValueError, naming the file, for what cannot be read.
    """
    from worldsmith.sampling.video_writer import read_image

    if is_image(path):
        try:
            return read_image(path)[:, None]
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from None
    import torch

    from worldsmith.data.clips.video_reader import read_ending, read_opening
    from worldsmith.data.stream.errors import SampleError

    try:
        return torch.from_numpy((read_ending if last else read_opening)(path, frames))
    except SampleError as error:
        raise ValueError(f"{path}: {error.detail} ({error.reason})") from None
