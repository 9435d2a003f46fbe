"""Selects the frames of a clip that a sample uses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.data.stream.errors import SampleError

if TYPE_CHECKING:
    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.data.clips.video_dataset import VideoDataset

MAX_FPS = 30


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames from `start` on, every `interval`-th frame of the file.

    `count` is a number of frames that the VAE can encode. If `interval` is not an integer, the nearest frames are used.
    """

    start: int
    """Index of the first frame in the file."""
    interval: int | float
    """Distance of two selected frames, in frames of the file."""
    count: int
    """Number of selected frames."""

    @property
    def indices(self) -> Sequence[int]:
        """Frame indices in the file, ascending."""
        if isinstance(self.interval, int):
            return range(self.start, self.start + self.count * self.interval, self.interval)
        return [self.start + int(number * self.interval + 0.5) for number in range(self.count)]


@dataclass(frozen=True, slots=True)
class FrameRange:
    """`count` consecutive frames of a file from `start` on, from which frames are selected."""

    start: int
    count: int
    fps: float
    """Frame rate of the file."""

    @property
    def last(self) -> int:
        return self.start + self.count - 1

    def without_ends(self, frames: int) -> FrameRange:
        """Returns the range without the first and the last `frames` frames."""
        return FrameRange(self.start + frames, self.count - 2 * frames, self.fps)


def select_frames(
    window: tuple[int, int, int],
    config: VideoDataset.Config,
    grid: LatentGrid,
    rng: random.Random,
    *,
    total: int,
    fps: float,
) -> FrameSelection:
    """Returns the frames of a window that a sample uses, as set by the dataset config.

    Args:
        window: (start_frame, end_frame, temporal_interval). The end is inclusive; -1 is the last frame of the file. The
            end is clamped to the file, since frame counts in dataset files are often estimates.
        config: Frame settings of the dataset.
        grid: Latent grid of the video VAE.
        rng: Used by the selection mode "random".
        total: Number of frames of the file.
        fps: Frame rate of the file.

    Raises:
        SampleError: window_out_of_range if the window has fewer than `min_frames` frames in the file; too_short if it
            has fewer than `num_video_frames`, or if a window up to the end of the file has fewer than `min_frames`
            frames.
    """
    frames = frames_in_file(window, total, fps, config.min_frames)
    mode, count, skip = config.temporal_interval_mode, config.num_video_frames, config.skip_frames
    if config.frame_buckets:
        count = largest_bucket(frames, config)
    if mode == "sat":
        return select_as_sat(frames, count, config, grid)
    if skip:
        frames = frames.without_ends(skip)
        if frames.count < config.min_frames:
            left = f"{max(0, frames.count)} frames are left after skipping {skip} at either end"
            raise SampleError("too_short", f"{left}; min_frames is {config.min_frames}")
    if mode == "target_fps":
        count = min(count, grid.usable_frames(frames.count))
    if count == -1:
        _, _, interval = window
        return FrameSelection(frames.start, interval, grid.usable_frames(-(-frames.count // interval)))
    if frames.count < count:
        size = f"window {frames.start}..{frames.last} has {frames.count} frames"
        raise SampleError("too_short", f"{size}, num_video_frames={count}")
    if mode == "target_fps":
        return select_at_rate(frames, fps / config.target_fps, count, config.frame_selection_mode, rng)
    intervals = {"max_30fps": max(1, int(fps / MAX_FPS)), "entire_chunk": max(1, frames.count // count)}
    interval = intervals.get(mode, 1)
    unused = max(0, frames.count - ((count - 1) * interval + 1))
    start = frames.start + first_offset(unused, config.frame_selection_mode, rng)
    count = min(count, -(-(frames.last - start + 1) // interval))
    return FrameSelection(start, interval, grid.usable_frames(count))


def frames_in_file(window: tuple[int, int, int], total: int, fps: float, min_frames: int) -> FrameRange:
    """Returns the frames of a window that exist in the file.

    Args:
        window: (start_frame, end_frame, temporal_interval); the end is inclusive, -1 is the last frame of the file.
        total: Number of frames of the file.
        fps: Frame rate of the file.
        min_frames: Required number of frames.

    Raises:
        SampleError: window_out_of_range or too_short if fewer than `min_frames` frames exist.
    """
    start, end, _ = window
    last = total - 1 if end == -1 else min(end, total - 1)
    frames = FrameRange(start, last - start + 1, fps)
    if end == -1 and 0 < frames.count < min_frames:
        raise SampleError("too_short", f"{frames.count} frames from frame {start}; min_frames is {min_frames}")
    if frames.count < min_frames:
        raise SampleError(
            "window_out_of_range",
            f"window {start}..{end} has {max(0, frames.count)} frames inside the file, which has {total}; at least "
            f"{min_frames} are required",
        )
    return frames


def largest_bucket(frames: FrameRange, config: VideoDataset.Config) -> int:
    """Returns the largest of `config.frame_buckets`, as a number of frames, for which `frames` is long enough.

    The frames of a sample are spaced as `temporal_interval_mode` sets. If all buckets are too large, the smallest one
    is returned.
    """
    fps, mode = frames.fps, config.temporal_interval_mode
    rates = {"target_fps": config.target_fps, "sat": config.target_fps, "max_30fps": fps / max(1, int(fps / MAX_FPS))}
    apart = max(1.0, fps / rates.get(mode, fps))
    room = int((frames.count - 2 * config.skip_frames - 1) / apart) + 1
    return max((number for number in config.frame_buckets if number <= room), default=config.frame_buckets[0])


def first_offset(unused: int, mode: str, rng: random.Random) -> int:
    """Returns how many of the `unused` frames precede the first used frame; `mode`: "first", "center" or "random"."""
    return {"center": unused // 2, "random": rng.randint(0, unused) if mode == "random" else 0}.get(mode, 0)


def select_at_rate(frames: FrameRange, interval: float, count: int, mode: str, rng: random.Random) -> FrameSelection:
    """Selects `count` different frames that are `interval` frames apart, or closer if `frames` has too few.

    Args:
        frames: Frames to select from.
        interval: Distance of two selected frames in frames of the file; may be fractional.
        count: Number of frames to select.
        mode: Position of the selected frames in `frames`: "first", "center" or "random".
        rng: Used by the mode "random".
    """
    interval = max(1.0, min(interval, (frames.count - 1) / max(1, count - 1)))
    span = int((count - 1) * interval + 0.5) + 1
    whole = int(interval) if interval.is_integer() else interval
    return FrameSelection(frames.start + first_offset(frames.count - span, mode, rng), whole, count)


def select_as_sat(frames: FrameRange, count: int, config: VideoDataset.Config, grid: LatentGrid) -> FrameSelection:
    """Selects the same frames as the data loader of CogVideo's SAT code (SwissArmyTransformer).

    The interval is rounded down to an integer, so the rate is at least `target_fps`. SAT fails at rates below
    `target_fps` and at some lengths, and repeats the last frame of short clips. In these cases, a smaller interval is
    used, fewer than `skip_frames` frames are skipped, or fewer than `count` frames are selected.

    Args:
        frames: Frames of the window.
        count: Number of frames to select; fewer are selected if the window is shorter.
        config: Frame settings of the dataset.
        grid: Latent grid of the video VAE.

    Raises:
        SampleError: too_short if fewer than `min_frames` frames can be selected.
    """
    skip, rate, least = config.skip_frames, config.target_fps, config.min_frames
    inner = frames.without_ends(skip)
    at_rate = frames.count / frames.fps * rate > count
    interval = max(1, (int(skip + count / rate * frames.fps) - skip if at_rate else inner.count) // count)
    if frames.count <= count and inner.count >= 1 and grid.usable_frames(inner.count) >= least:
        frames, skip = inner, 0
    count = grid.usable_frames(min(count, frames.count))
    if count < least:
        raise SampleError("too_short", f"only {count} of {frames.count} frames can be used; min_frames is {least}")
    skip = min(skip, frames.count - ((count - 1) * interval + 1))
    return FrameSelection(frames.start + skip, interval, count)
