"""Selects the frames of a video and their times, and computes the sizes of images and frames for a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worldsmith.data.stream.errors import SampleError

TOLERANCE = 0.01
"""Max relative difference of two frame rates that are regarded as equal."""
MAX_ASPECT = 200
LEAST_TOKENS, MOST_TOKENS = 4, 16384
"""Allowed min and max number of tokens of an image or frame whose size the config or the dataset sets explicitly."""


def choose_frames(
    total: int,
    fps: float,
    *,
    wanted_fps: float | None,
    wanted: int | None,
    min_frames: int,
    max_frames: int,
    even: bool = False,
) -> list[int]:
    """Returns the indices of evenly spaced frames of a video, from its first to its last frame.

    All frames are returned if the video has fewer than the number to select.

    Source: the Qwen3-VL video processor of transformers.

    Args:
        total: Number of frames of the video.
        fps: Frame rate of the video.
        wanted_fps: Frames per second to select, if `wanted` is None.
        wanted: Number of frames to select; None: as many as `wanted_fps` gives.
        min_frames: Min number of frames if the number follows from `wanted_fps`.
        max_frames: Max number of frames if the number follows from `wanted_fps`.
        even: Make the number of frames even, as in qwen-vl-utils: `wanted` is rounded, a number from a rate is rounded
            down.
    """
    import numpy as np

    if wanted is None:
        assert wanted_fps is not None
        wanted = min(max(int(total / fps * wanted_fps), min_frames + even * (min_frames % 2)), max_frames)
        wanted = min(wanted, total) // 2 * 2 if even else wanted
    elif even:
        wanted = round(wanted / 2) * 2
    return [int(number) for number in np.linspace(0, total - 1, min(max(wanted, 1 + even), total)).round()]


def patch_times(times: Sequence[float], temporal: int) -> list[float]:
    """Returns the time of each temporal patch of a video: the mean of the times of the patch's first and last frame.

    Args:
        times: Times of the frames in seconds; the last one is repeated to fill the last patch.
        temporal: Number of frames of a patch.
    """
    padded = [*times, *[times[-1]] * (-len(times) % temporal)]
    return [(padded[i] + padded[i + temporal - 1]) / 2 for i in range(0, len(padded), temporal)]


def rates_differ(rate: float, other: float) -> bool:
    """Returns whether the frame rates `rate` and `other` differ by more than 1 % (`TOLERANCE`)."""
    return abs(rate / other - 1) > TOLERANCE


def image_size(height: int, width: int, *, factor: int, least: int, most: int) -> tuple[int, int]:
    """Returns the resized (height, width) of an image with `least` <= height * width <= `most`.

    Source: `smart_resize` of the Qwen2-VL image processor of transformers.

    Args:
        height: Height in pixels.
        width: Width in pixels.
        factor: Both sides of the result are multiples of this.
        least: Min number of pixels.
        most: Max number of pixels.

    Raises:
        SampleError: If the aspect ratio is extreme.
    """
    return resized(height, width, 1, 1, factor, least, most)


def video_size(
    frames: int, height: int, width: int, *, factor: int, temporal: int, least: int, most: int
) -> tuple[int, int]:
    """Returns the resized (height, width) of a video with `least` <= frames * height * width <= `most`.

    A side below the factor is scaled up first.

    Source: `smart_resize` of the Qwen3-VL video processor of transformers.

    Args:
        frames: Number of frames, at least `temporal`.
        height: Height in pixels.
        width: Width in pixels.
        factor: Both sides of the result are multiples of this.
        temporal: Number of frames of a patch.
        least: Min number of pixels of all frames.
        most: Max number of pixels of all frames.

    Raises:
        SampleError: If the aspect ratio is extreme.
    """
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    return resized(height, width, frames, round(frames / temporal) * temporal, factor, least, most)


def fixed_size(height: int, width: int, *, factor: int) -> tuple[int, int]:
    """Returns a requested (height, width) in pixels, rounded to multiples of `factor`, with 4 to 16384 tokens.

    Source: `resized_height` and `resized_width` of qwen-vl-utils, with the same limits for images and videos.

    Raises:
        SampleError: If the aspect ratio is extreme.
    """
    rows, columns = (max(1, round(side / factor)) for side in (height, width))
    if LEAST_TOKENS <= rows * columns <= MOST_TOKENS and max(height, width) <= MAX_ASPECT * min(height, width):
        return rows * factor, columns * factor
    return image_size(height, width, factor=factor, least=LEAST_TOKENS * factor**2, most=MOST_TOKENS * factor**2)


def resized(height: int, width: int, frames: int, counted: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Returns a frame size (height, width) in multiples of `factor`, scaled so that all frames fit the pixel limits.

    Args:
        height: Height in pixels.
        width: Width in pixels.
        frames: Exact number of frames, from which the scale factor is computed (as in transformers).
        counted: Number of frames rounded to complete temporal patches, for which the limits are checked.
        factor: Both sides of the result are multiples of this.
        least: Min number of pixels of all frames.
        most: Max number of pixels of all frames.

    Raises:
        SampleError: If the aspect ratio is extreme.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise SampleError(
            "extreme_aspect", f"{width}x{height} px: the longer side may be at most {MAX_ASPECT} times the shorter side"
        )
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if counted * rows * columns > most:
        shrink = math.sqrt(frames * height * width / most)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif counted * rows * columns < least:
        grow = math.sqrt(least / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns
