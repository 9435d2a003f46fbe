"""Inspects the clip of a window before it is read: limits, frames to use, size. Summarizes a dataset that way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import target_size
from worldsmith.data.clips.video_dataset import VideoDataset, Window
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.maker import Features
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_file import Status, VideoInfo, examine

MAX_FPS = 30


@dataclass(frozen=True, slots=True)
class InspectedClip:
    """The frames of a clip that a sample uses, and their size in training."""

    status: Status
    info: VideoInfo
    selection: FrameSelection
    size: tuple[int, int]
    """(H, W) in pixels."""
    latent_shape: tuple[int, int, int]
    fps: float

    def __str__(self) -> str:
        return f"{self.size[1]}x{self.size[0]}, {self.selection.count} frames"


def inspect_window(window: Window, config: VideoDataset.Config, grid: LatentGrid, rng: random.Random) -> InspectedClip:
    """Inspects the clip of a window and selects its frames; decodes one frame.

    The limits of the config are checked with the file itself, since the dataset file may be wrong or incomplete.

    Args:
        window: A window of the dataset.
        config: Limits, frame selection and resolution.
        grid: Latent grid of the video VAE.
        rng: Used by the random frame selection.

    Raises:
        SampleError: The clip or the window is outside the limits.
    """
    status, info = examine(window.path)
    if info.duration > config.max_duration:
        raise SampleError("too_long", f"{info.duration:.2f} s; max_duration is {config.max_duration} s")
    if min(info.width, info.height) < config.min_short_edge:
        raise SampleError("too_small", f"{info.width}x{info.height} px; min_short_edge is {config.min_short_edge}")
    selection = select_frames(
        (window.start_frame, window.end_frame, window.temporal_interval),
        total=info.num_frames,
        fps=info.fps,
        min_frames=config.min_frames,
        num_video_frames=config.num_video_frames,
        temporal_interval_mode=config.temporal_interval_mode,
        frame_selection_mode=config.frame_selection_mode,
        grid=grid,
        rng=rng,
        target_fps=config.target_fps,
        skip_frames=config.skip_frames,
        frame_buckets=config.frame_buckets,
    )
    fps = config.conditioning_fps if config.conditioning_fps > 0 else info.fps / selection.interval
    width, height = target_size(config.resolution, info.width, info.height)
    return InspectedClip(
        status, info, selection, (height, width), grid.latent_shape(selection.count, height, width), fps
    )


def features_of(info: VideoInfo, frames: int, size: tuple[int, int], fps: float) -> Features:
    """Returns the values for a data report: rate, size and duration of a file, and of the frames that are used.

    Args:
        info: Properties of the file.
        frames: Number of used frames.
        size: (H, W) of the used frames in pixels.
        fps: Rate of the used frames.
    """
    height, width = size
    return {
        "frames a second": [round(info.fps, 3)],
        "size": [f"{info.width}x{info.height}"],
        "seconds": [round(info.duration, 2)],
        "frames used": [frames],
        "frames used a second": [round(fps, 3)],
        "size used": [f"{width}x{height}"],
    }


@dataclass(frozen=True, slots=True)
class FrameSelection:
    """`count` frames from `start` on, every `interval`-th frame of the file; the VAE can encode this number of frames.

    If the interval is not a whole number, the nearest frames are used.
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
    """Selects frames of a window by the settings of the same names of `VideoDataset.Config`.

    Args:
        window: (start_frame, end_frame, temporal_interval). The end is inclusive; -1 is the last frame of the file. It
            is clamped to the file, since frame counts in dataset files are often estimates.
        total: Number of frames of the file.
        fps: Frame rate of the file.

    Raises:
        SampleError: window_out_of_range if the window has fewer than `min_frames` frames in the file; too_short if it
            has fewer than `num_video_frames`, or if a window up to the end of the file has fewer than `min_frames`.
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
    """Returns the largest bucket that fits into `available` frames, `apart` frames apart, or the smallest bucket."""
    room = int((available - 1) / apart) + 1
    return max((number for number in buckets if number <= room), default=buckets[0])


def offset(slack: int, mode: str, rng: random.Random) -> int:
    """Returns the number of unused frames before the first used frame, out of `slack` unused frames."""
    return {"center": slack // 2, "random": rng.randint(0, slack) if mode == "random" else 0}.get(mode, 0)


def at_rate(start: int, available: int, interval: float, count: int, mode: str, rng: random.Random) -> FrameSelection:
    """Selects `count` frames, `interval` apart, or closer if the clip is too short; never repeats a frame."""
    interval = max(1.0, min(interval, (available - 1) / max(1, count - 1)))
    span = int((count - 1) * interval + 0.5) + 1
    whole = int(interval) if interval.is_integer() else interval
    return FrameSelection(start + offset(available - span, mode, rng), whole, count)


def as_sat(
    start: int, available: int, fps: float, count: int, target_fps: float, skip: int, min_frames: int, grid: LatentGrid
) -> FrameSelection:
    """Selects the same frames as CogVideo's SAT from a clip of `available` frames.

    The interval is rounded down to a whole number, so the rate is at least `target_fps`. SAT fails at rates below
    `target_fps` and at some lengths, and repeats the last frame of short clips. In these cases the interval is 1, or
    fewer frames are skipped.

    Raises:
        SampleError: too_short.
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


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Counts of a dataset. `rejections` are those of the lines of the dataset file and of the inspected windows."""

    records: int
    windows: int
    probed: int
    rejections: list[Rejection]
    features: list[Features]
    """Features of the inspected windows that are not skipped."""

    @property
    def drops(self) -> dict[str, int]:
        """Number of rejections per reason."""
        return dict(sorted(Counter(r.reason for r in self.rejections).items()))

    def __str__(self) -> str:
        drops = ", ".join(f"{reason} {n}" for reason, n in self.drops.items()) or "nothing"
        return f"{self.records} records, {self.windows} windows; left out: {drops} ({self.probed} clips opened)"


def summarize_dataset(
    dataset: VideoDataset, grid: LatentGrid, *, probe: int = 16, max_tokens: int | None = None
) -> DatasetSummary:
    """Counts the records of a dataset, and inspects `probe` windows, evenly spaced over the dataset.

    Args:
        dataset: The dataset.
        grid: Latent grid of the video VAE.
        probe: Number of windows to inspect; the first frame of each is decoded.
        max_tokens: Token limit of a pack; windows whose video tokens exceed it are rejected.
    """
    windows = every_nth(dataset.windows, probe)
    rejections, features = list(dataset.rejections), []
    for window in windows:
        try:
            part = inspect_window(window, dataset.config, grid, random.Random(0))
            tokens = grid.sample_tokens(0, part.latent_shape)
            if max_tokens is not None and tokens > max_tokens:
                raise SampleError("over_token_cap", f"{tokens} tokens ({part}); a pack holds {max_tokens}")
            features.append(features_of(part.info, part.selection.count, part.size, part.fps))
        except SampleError as error:
            rejections.append(Rejection(window.key, error.reason, error.detail, window.path, window.line))
    return DatasetSummary(dataset.num_records, len(dataset.windows), len(windows), rejections, features)


def every_nth(windows: list[Window], count: int) -> list[Window]:
    """Returns `count` evenly spaced windows, or all windows if there are fewer."""
    if len(windows) <= count:
        return windows
    return [windows[i * len(windows) // count] for i in range(count)]
