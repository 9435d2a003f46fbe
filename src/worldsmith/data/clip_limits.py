"""Limits of a clip, checked before it is generated."""

from __future__ import annotations

import math

import psutil

MIN_FPS, MAX_FPS = 0.01, 1000
"""Min and max frame rate of a clip in frames per second."""


def require_clip(frames: int, height: int, width: int, fps: float) -> None:
    """Raises ValueError for an invalid frame rate, or if the RGB bytes of a clip exceed the host RAM.

    Args:
        frames: Number of frames.
        height: Height in pixels.
        width: Width in pixels.
        fps: Frames per second.
    """
    if not (math.isfinite(fps) and MIN_FPS <= fps <= MAX_FPS):
        raise ValueError(f"fps must be from {MIN_FPS} to {MAX_FPS}, found {fps}")
    needed, memory = 3 * frames * height * width, psutil.virtual_memory().total
    if needed > memory:
        raise ValueError(
            f"{frames} frames of {height}×{width} pixels need {needed / 2**30:.0f} GiB, but this machine has "
            f"{memory / 2**30:.0f} GiB of memory; use fewer or smaller frames"
        )
