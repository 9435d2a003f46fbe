"""The frames of a clip as arrays: at the training size, or as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worldsmith.data.clips.framing import Framing
from worldsmith.data.video_file import VideoInfo, examine, pick


def read_frames(path: str, info: VideoInfo, indices: Sequence[int], framing: Framing) -> np.ndarray:
    """The frames `indices` as uint8 [3, T, H, W], upright and of the framing's size.

    Raises SampleError, as `pick` does.
    """
    width, height = framing.size
    out = np.empty((3, len(indices), height, width), np.uint8)
    for done, frame in enumerate(pick(path, info, indices)):
        out[:, done] = framing(frame, info.rotation)
    return out


def read_opening(path: str, count: int) -> np.ndarray:
    """The first frames of a clip, at most `count`, as uint8 [3, T, H, W], upright and of its own size."""
    _, info = examine(path)
    return read_upright(path, info, range(min(count, info.num_frames)))


def read_ending(path: str, count: int) -> np.ndarray:
    """The last frames of a clip, as `read_opening` the first."""
    _, info = examine(path)
    return read_upright(path, info, range(max(0, info.num_frames - count), info.num_frames))


def read_upright(path: str, info: VideoInfo, indices: Sequence[int]) -> np.ndarray:
    """Some frames of a clip as uint8 [3, T, H, W], upright and of its own size."""
    frames = [
        np.rot90(frame.to_ndarray(format="rgb24", threads=1), info.rotation) for frame in pick(path, info, indices)
    ]
    return np.stack(frames).transpose(3, 0, 1, 2)
