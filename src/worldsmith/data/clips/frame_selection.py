"""Which frames of a window are used."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.stream.errors import SampleError

MAX_FPS = 30


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames, as many as a video VAE can encode, from `start` on, every `interval`-th of the file.

    With an interval between two whole numbers, the frames that are nearest.
    """

    start: int
    interval: int | float
    count: int

    @property
    def indices(self) -> Sequence[int]:
        if isinstance(self.interval, int):
            return range(self.start, self.start + self.count * self.interval, self.interval)
        return [self.start + int(number * self.interval + 0.5) for number in range(self.count)]


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
    target_fps: float = 8.0,
    skip_frames: int = 0,
    frame_buckets: Sequence[int] = (),
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
    if frame_buckets:
        rate = {"target_fps": target_fps, "sat": target_fps, "max_30fps": fps / max(1, int(fps / MAX_FPS))}
        apart = fps / rate.get(temporal_interval_mode, fps)
        num_video_frames = bucket_of(available - 2 * skip_frames, max(1.0, apart), frame_buckets)
    if temporal_interval_mode == "sat":
        return as_sat(start, available, fps, num_video_frames, target_fps, skip_frames, min_frames, grid)
    if skip_frames:
        start, last, available = start + skip_frames, last - skip_frames, available - 2 * skip_frames
        if available < max(1, min_frames):
            left = f"{max(0, available)} frames are left without {skip_frames} at either end"
            raise SampleError("too_short", f"{left}; min_frames is {min_frames}")
    if temporal_interval_mode == "target_fps":
        num_video_frames = min(num_video_frames, grid.usable_frames(available))
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
    elif temporal_interval_mode == "target_fps":
        return at_rate(start, available, fps / target_fps, num_video_frames, frame_selection_mode, rng)
    else:
        interval = 1
    slack = max(0, available - ((num_video_frames - 1) * interval + 1))
    start += offset(slack, frame_selection_mode, rng)
    count = min(num_video_frames, -(-(last - start + 1) // interval))
    return FrameSelection(start, interval, grid.usable_frames(count))


def bucket_of(available: int, apart: float, buckets: Sequence[int]) -> int:
    """The largest number of frames that `available` hold so far apart; where there is none, the smallest."""
    room = int((available - 1) / apart) + 1
    return max((number for number in buckets if number <= room), default=buckets[0])


def offset(slack: int, mode: str, rng: random.Random) -> int:
    """Frames before the first one that is used, of `slack` that are not needed."""
    return {"center": slack // 2, "random": rng.randint(0, slack) if mode == "random" else 0}.get(mode, 0)


def at_rate(start: int, available: int, interval: float, count: int, mode: str, rng: random.Random) -> FrameSelection:
    """`count` frames, `interval` apart: nearer where a clip is too short for that, and never one frame twice."""
    interval = max(1.0, min(interval, (available - 1) / max(1, count - 1)))
    span = int((count - 1) * interval + 0.5) + 1
    whole = int(interval) if interval.is_integer() else interval
    return FrameSelection(start + offset(available - span, mode, rng), whole, count)


def as_sat(
    start: int, available: int, fps: float, count: int, target_fps: float, skip: int, min_frames: int, grid: LatentGrid
) -> FrameSelection:
    """The frames that CogVideo's SAT takes of a clip of `available` frames.

    Their distance is a whole number, rounded down, so that the rate is `target_fps` or above. SAT fails at rates below
    `target_fps` and at some lengths, and repeats the last frame where there are too few: there frames have the distance
    1, or fewer are skipped. Raises SampleError: too_short.
    """
    inner = available - 2 * skip
    at_rate = available / fps * target_fps > count
    interval = max(1, (int(skip + count / target_fps * fps) - skip if at_rate else inner) // count)
    if available <= count and inner >= 1 and grid.usable_frames(inner) >= min_frames:
        start, available, skip = start + skip, inner, 0
    count = grid.usable_frames(min(count, available))
    if count < min_frames:
        raise SampleError("too_short", f"{count} of {available} frames can be used; min_frames is {min_frames}")
    return FrameSelection(start + min(skip, available - ((count - 1) * interval + 1)), interval, count)
