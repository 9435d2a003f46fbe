"""What no clip can be, said before it is made."""

from __future__ import annotations

import math

import psutil

LEAST_FPS, MOST_FPS = 0.01, 1000
"""Frames per second that a video file can state."""


def require_clip(frames: int, height: int, width: int, fps: float) -> None:
    """Raises ValueError for a rate that is none, and for more RGB bytes than the machine has memory."""
    if not (math.isfinite(fps) and LEAST_FPS <= fps <= MOST_FPS):
        raise ValueError(f"fps must be from {LEAST_FPS} to {MOST_FPS}, found {fps}")
    needed, memory = 3 * frames * height * width, psutil.virtual_memory().total
    if needed > memory:
        raise ValueError(
            f"{frames} frames of {height}×{width} pixels take {needed / 2**30:.0f} GiB, and this machine has "
            f"{memory / 2**30:.0f} GiB of memory; ask for fewer or smaller frames"
        )
