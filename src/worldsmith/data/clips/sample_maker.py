"""From a stream position to a sample: the work of a loader process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from worldsmith.data.clips.captions import choose_caption, render_caption
from worldsmith.data.clips.conditioning import draw_condition_frames
from worldsmith.data.clips.frame_selection import FrameSelection, select_frames
from worldsmith.data.clips.latent_cache import LatentCache, file_identity
from worldsmith.data.clips.resolution import cover_and_crop, target_size
from worldsmith.data.clips.sample import Rejection, VideoSample
from worldsmith.data.clips.token_count import latent_shape
from worldsmith.data.clips.video_dataset import VideoDataset, Window
from worldsmith.data.clips.video_reader import VideoInfo, probe, read_frames
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.order import sample_index, sample_rng

CacheOutcome = Literal["off", "hit", "miss", "corrupt"]


@dataclass(slots=True)
class Made:
    """What a worker returns: a sample that still lacks its text ids, its token count and its tensors, or a rejection.

    Pixels and latents are numpy arrays: tensors would need shared memory to travel, which is tiny in many containers.
    """

    item: VideoSample | Rejection
    video: np.ndarray | None = None
    latents: np.ndarray | None = None
    cache: CacheOutcome = "off"
    variable_rate: bool = False
    """Whether the frames of the clip are unevenly spaced in time."""


class SampleMaker:
    """Maps a stream position to a sample. All randomness of a sample comes from (seed, position)."""

    def __init__(self, dataset: VideoDataset, *, seed: int, shuffle: bool, latent_cache: LatentCache | None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.shuffle = shuffle
        self.latent_cache = latent_cache

    def __getitem__(self, position: int) -> Made:
        window = self.window(position)
        try:
            return self._make(window, position)
        except SampleError as error:
            return Made(Rejection(window.key, error.reason, error.detail, window.path))

    def window(self, position: int) -> Window:
        return self.dataset.windows[sample_index(position, len(self.dataset), seed=self.seed, shuffle=self.shuffle)]

    def _make(self, window: Window, position: int) -> Made:
        config = self.dataset.config
        identity, info = identify(window)
        selection, (width, height) = select_part(window, info, config, sample_rng(self.seed, position, "frames"))
        shape = latent_shape(selection.count, height, width)
        fps = config.conditioning_fps if config.conditioning_fps > 0 else info.fps / selection.interval

        key, latents = None, None
        cache: CacheOutcome = "off"
        if self.latent_cache is not None:
            frames = [selection.start, selection.interval, selection.count]
            source = [window.start_frame, window.end_frame, window.temporal_interval]
            key = self.latent_cache.key_for(file=identity, window=source, frames=frames, size=[height, width])
            damaged = self.latent_cache.corrupt
            latents = self.latent_cache.get(key, shape)
            cache = "hit" if latents is not None else "miss" if self.latent_cache.corrupt == damaged else "corrupt"
        video = None
        if latents is None:
            video = read_frames(
                window.path, info, selection.indices, cover_and_crop(info.width, info.height, (width, height))
            )

        sample = VideoSample(
            key=window.key,
            position=position,
            text_ids=[],
            caption=self._caption(window, position, selection.count, fps, (height, width)),
            video=None,
            latents=None,
            latent_shape=shape,
            size=(height, width),
            num_frames=selection.count,
            fps=fps,
            condition_frames=draw_condition_frames(
                config.conditioning_config, shape[0], sample_rng(self.seed, position, "conditioning")
            ),
            num_tokens=0,
            cache_key=key,
            resolution=config.resolution,
        )
        return Made(sample, video, None if latents is None else latents.numpy(), cache, info.variable_rate)

    def _caption(self, window: Window, position: int, num_frames: int, fps: float, size: tuple[int, int]) -> str:
        config = self.dataset.config
        rng = sample_rng(self.seed, position, "caption")
        caption = choose_caption(window.captions, config.caption_keys, rng)
        if caption is None:
            raise SampleError("no_caption", "no caption key holds text")
        return render_caption(
            caption,
            suffix=config.caption_suffix,
            append_duration_fps=config.append_duration_fps_timestamps,
            append_resolution=config.append_resolution_info,
            dropout_rate=config.cfg_dropout_rate,
            dropout_keeps_metadata=config.cfg_dropout_keep_metadata,
            num_frames=num_frames,
            fps=fps,
            size=size,
            rng=sample_rng(self.seed, position, "dropout"),
        )


def identify(window: Window) -> tuple[list[Any], VideoInfo]:
    """(identity for cache keys, facts) of the file of a window. Raises SampleError."""
    try:
        identity = file_identity(window.path, window.relative_path)
    except (FileNotFoundError, NotADirectoryError):
        raise SampleError("missing_file", "the file does not exist") from None
    except OSError as error:
        raise SampleError("unreadable", str(error)) from None
    return identity, probe(window.path, identity[1], identity[2])


def select_part(
    window: Window, info: VideoInfo, config: VideoDataset.Config, rng: random.Random
) -> tuple[FrameSelection, tuple[int, int]]:
    """The frames to read and their (width, height) in training.

    The limits of the config are held against the file itself: what the data set file states may be wrong or absent.
    Raises SampleError for a clip or a window outside of them.
    """
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
        rng=rng,
    )
    return selection, target_size(config.resolution, info.width, info.height)
