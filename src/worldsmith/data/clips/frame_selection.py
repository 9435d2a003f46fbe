"""Which frames of a window are used."""

from __future__ import annotations

import random
from dataclasses import dataclass

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.stream.errors import SampleError

MAX_FPS = 30


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames, as many as a video VAE can encode, from `start` on, every `interval`-th of the file."""

    start: int
    interval: int
    count: int

    @property
    def indices(self) -> range:
        return range(self.start, self.start + self.count * self.interval, self.interval)


def select_frames(
    window: tuple[int, int, int],
    *,
    total: int,
    fps: float,
    min_frames: int,
    num_video_frames: int,
    temporal_interval_mode: str,
    frame_selection_mode: str,
    grid: LatentGrid,
    rng: random.Random,
) -> FrameSelection:
    """Frames of `window` = (start_frame, end_frame, temporal_interval) in a file of `total` frames at `fps`.

    The end is inclusive; -1 is that of the file. It is clamped to the file, since frame counts in data set files are
    often estimates.
    Raises SampleError: window_out_of_range when fewer than `min_frames` are left then, too_short when the window has
    fewer than `num_video_frames`, or goes up to the end of a file that has fewer than `min_frames`.
    """
    start, end, interval = window
    last = total - 1 if end == -1 else min(end, total - 1)
    available = last - start + 1
    if end == -1 and 0 < available < min_frames:
        raise SampleError("too_short", f"{available} frames from frame {start} on; min_frames is {min_frames}")
    if available < max(1, min_frames):
        raise SampleError(
            "window_out_of_range",
            f"window {start}..{end} has {max(0, available)} frames inside the file, which has {total}; "
            f"at least {max(1, min_frames)} are needed",
        )
    if num_video_frames == -1:
        return FrameSelection(start, interval, grid.usable_frames(-(-available // interval)))
    if available < num_video_frames:
        raise SampleError(
            "too_short", f"window {start}..{last} has {available} frames, num_video_frames={num_video_frames}"
        )
    if temporal_interval_mode == "max_30fps":
        interval = max(1, int(fps / MAX_FPS))
    elif temporal_interval_mode == "entire_chunk":
        interval = max(1, available // num_video_frames)
    else:
        interval = 1
    slack = max(0, available - ((num_video_frames - 1) * interval + 1))
    if frame_selection_mode == "center":
        start += slack // 2
    elif frame_selection_mode == "random":
        start += rng.randint(0, slack)
    count = min(num_video_frames, -(-(last - start + 1) // interval))
    return FrameSelection(start, interval, grid.usable_frames(count))
