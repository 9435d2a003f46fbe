"""To which size pictures are brought: sides that are multiples of a factor, an area within limits, the same aspect.

The formulas are those of `smart_resize` in transformers' Qwen2-VL (images) and Qwen3-VL (videos).
"""

from __future__ import annotations

import math

from worldsmith.data.stream.errors import SampleError

MAX_ASPECT = 200
LEAST_TOKENS, MOST_TOKENS = 4, 16384
"""Of an image, or of a frame counted alone, whose size is asked for."""


def image_size(height: int, width: int, *, factor: int, least: int, most: int) -> tuple[int, int]:
    """(height, width) of an image with `least` <= height * width <= `most`. Raises SampleError for a mere line."""
    return resized(height, width, 1, 1, factor, least, most)


def fixed_size(height: int, width: int, *, factor: int) -> tuple[int, int]:
    """The size that is asked for, rounded, within 4 to 16384 tokens.

    Source: `resized_height` and `resized_width` of qwen-vl-utils, which has the same limits for images and videos.

    Raises SampleError for a mere line.
    """
    rows, columns = (max(1, round(side / factor)) for side in (height, width))
    if LEAST_TOKENS <= rows * columns <= MOST_TOKENS and max(height, width) <= MAX_ASPECT * min(height, width):
        return rows * factor, columns * factor
    return image_size(height, width, factor=factor, least=LEAST_TOKENS * factor**2, most=MOST_TOKENS * factor**2)


def video_size(
    frames: int, height: int, width: int, *, factor: int, temporal: int, least: int, most: int
) -> tuple[int, int]:
    """The same for all pixels of a video of at least `temporal` frames; a side below the factor is scaled up first."""
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    return resized(height, width, frames, round(frames / temporal) * temporal, factor, least, most)


def resized(height: int, width: int, frames: int, counted: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """`counted`: the frames by which it is decided whether a size is within the limits; `frames` scale it then."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise SampleError(
            "extreme_aspect", f"{width}x{height} px; one side may be {MAX_ASPECT} times the other at most"
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
