"""Inspects the clip of a window before it is read: limits, used frames, size. Summarizes datasets in this way."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from worldsmith.data.clips.frame_selection import FrameSelection, select_frames
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import target_size
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.window_index import Window
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import Features
from worldsmith.data.video_decoder import FileStatus, VideoInfo, examine


@dataclass(frozen=True, slots=True)
class InspectedClip:
    """Result of inspecting the clip of a window: file, used frames, and their size and frame rate in training."""

    status: FileStatus
    info: VideoInfo
    selection: FrameSelection
    size: tuple[int, int]
    """(H, W) in pixels after resizing and cropping."""
    latent_shape: tuple[int, int, int]
    """(t, h, w)."""
    fps: float
    """Frame rate that the model gets."""

    def __str__(self) -> str:
        return f"{self.size[1]}x{self.size[0]}, {self.selection.count} frames"


def inspect_window(window: Window, config: VideoDataset.Config, grid: LatentGrid, rng: random.Random) -> InspectedClip:
    """Reads the metadata of a window's clip and selects the frames that a sample uses; decodes one frame.

    The limits of the config are checked with the file itself, since the dataset file may be wrong or incomplete.

    Args:
        window: Window of the dataset.
        config: Limits, frame selection and resolution.
        grid: Latent grid of the video VAE.
        rng: Used by random frame selection.

    Raises:
        SampleError: If the clip cannot be read, or the clip or window is outside the limits.
    """
    status, info = examine(window.path)
    if info.duration > config.max_duration:
        raise SampleError("too_long", f"{info.duration:.2f} s; max_duration is {config.max_duration} s")
    if min(info.width, info.height) < config.min_short_edge:
        raise SampleError("too_small", f"{info.width}x{info.height} px; min_short_edge is {config.min_short_edge}")
    selection = select_frames(
        (window.start_frame, window.end_frame, window.temporal_interval),
        config,
        grid,
        rng,
        total=info.num_frames,
        fps=info.fps,
    )
    fps = config.conditioning_fps if config.conditioning_fps > 0 else info.fps / selection.interval
    width, height = target_size(config.resolution, info.width, info.height)
    return InspectedClip(
        status, info, selection, (height, width), grid.latent_shape(selection.count, height, width), fps
    )


def features_of(info: VideoInfo, frames: int, size: tuple[int, int], fps: float) -> Features:
    """Returns properties of a clip for a data report, as lists of one value by name, such as {"size": ["640x480"]}.

    The properties are rate, size and duration of the file, and number, rate and size of the used frames.

    Args:
        info: Metadata of the file.
        frames: Number of used frames.
        size: (H, W) of the used frames in pixels.
        fps: Rate of the used frames.
    """
    height, width = size
    return {
        "fps of the file": [round(info.fps, 3)],
        "size": [f"{info.width}x{info.height}"],
        "seconds": [round(info.duration, 2)],
        "frames used": [frames],
        "fps used": [round(fps, 3)],
        "size used": [f"{width}x{height}"],
    }


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Number of records and windows of a dataset of clips, and the result of inspecting a few of its windows."""

    records: int
    windows: int
    probed: int
    """Number of inspected windows."""
    rejections: list[Rejection]
    """Rejected records of the dataset file, and rejected windows among the inspected ones."""
    features: list[Features]
    """Properties of each inspected window that is not rejected: lists of values by name, such as "size"."""

    @property
    def drops(self) -> dict[str, int]:
        """Number of rejections by reason, sorted by reason."""
        return dict(sorted(Counter(r.reason for r in self.rejections).items()))

    def __str__(self) -> str:
        drops = ", ".join(f"{reason} {n}" for reason, n in self.drops.items()) or "nothing"
        return f"{self.records} records, {self.windows} windows; skipped: {drops} ({self.probed} clips opened)"


def summarize_dataset(
    dataset: VideoDataset, grid: LatentGrid, *, probe: int = 16, max_tokens: int | None = None
) -> DatasetSummary:
    """Returns the numbers of records and windows of a dataset, and the results of inspecting some of its windows.

    Args:
        dataset: Dataset of clips.
        grid: Latent grid of the video VAE.
        probe: Number of evenly spaced windows to inspect; the first frame of each is decoded.
        max_tokens: Token limit of a pack; windows whose video tokens exceed it are rejected. None: no limit.
    """
    count = min(probe, len(dataset.windows))
    windows = [dataset.windows[i * len(dataset.windows) // count] for i in range(count)]
    rejections, features = list(dataset.rejections), []
    for window in windows:
        try:
            part = inspect_window(window, dataset.config, grid, random.Random(0))
            tokens = grid.sample_tokens(0, part.latent_shape)
            if max_tokens is not None and tokens > max_tokens:
                raise SampleError("over_token_cap", f"{tokens} tokens ({part}); max_sequence_length is {max_tokens}")
            features.append(features_of(part.info, part.selection.count, part.size, part.fps))
        except SampleError as error:
            rejections.append(Rejection(window.key, error.reason, error.detail, window.path, window.line))
    return DatasetSummary(dataset.num_records, len(dataset.windows), len(windows), rejections, features)
