"""What no clip can be, said before it is made."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import psutil

from worldsmith.files.writable import nearest_folder

LEAST_FILE = 4096
"""Bytes that a file takes on a disk, however small it is."""
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


def require_room(out: Path, clips: int) -> None:
    """Raises ValueError for more clips than there can be on the disk of the folder `out`, however small they are."""
    needed, free = clips * LEAST_FILE, shutil.disk_usage(nearest_folder(out)).free
    if needed > free:
        raise ValueError(
            f"{clips} clips take at least {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free on the disk "
            f"of {out}; ask for fewer or make room"
        )
