"""Assumed batches of captioned clips: of one shape, at the run's own resolution and number of frames."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldsmith.data.assumed.batch import CAPTION_TOKENS, AssumedBatch, count_of
from worldsmith.data.clips.resolution import RESOLUTIONS, exact_size
from worldsmith.data.clips.sample import FirstFrames, VideoSample

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.data.clips.video_dataset import VideoDataset
    from worldsmith.data.clips.video_loader import VideoLoader

ASPECT = "16,9"
"""Bucket of a resolution tier that is assumed."""
RATE = 24.0
"""Frames a second, where the data set says none."""


def assumed_clips(
    data: VideoLoader.Config,
    grid: LatentGrid,
    *,
    channels: int,
    first_frames: FirstFrames = "none",
    fill: float = 1.0,
    encoded: bool = True,
) -> AssumedBatch:
    """As many clips as fit into a share `fill` of a pack; captions are as long as fills it, up to their limit.

    `encoded`: they bring latents (as from a cache) of so many `channels`, else pixels. A first frame that is encoded
    anew in every step brings pixels in any case. A clip that alone is longer than the share is assumed to be shorter.
    """
    dataset, room = data.dataset, room_of(data.max_sequence_length, fill)
    width, height = exact_size(dataset.resolution) or RESOLUTIONS[dataset.resolution][ASPECT]
    caption = min(CAPTION_TOKENS, data.max_caption_tokens)
    frames = grid.usable_frames(frames_of(dataset))
    while (tokens := grid.sample_tokens(caption, shape := grid.latent_shape(frames, height, width))) > room:
        if frames == 1:
            break
        frames = grid.usable_frames(max(1, frames // 2))
    count = max(1, int(room // tokens)) if data.max_sequence_length else max(1, round(fill * most(data)))
    if data.max_sequence_length:
        caption = min(data.max_caption_tokens, caption + max(0, int(room) // count - tokens))
        tokens = grid.sample_tokens(caption, shape)
    fps = dataset.conditioning_fps if dataset.conditioning_fps > 0 else RATE
    bare = [
        VideoSample(
            key=f"assumed_{place}",
            position=place,
            text_ids=[1] * caption,
            caption="assumed",
            video=None,
            latents=None,
            latent_shape=shape,
            size=(height, width),
            num_frames=frames,
            fps=fps,
            condition_frames=0,
            num_tokens=tokens,
            cache_key=None,
            resolution=dataset.resolution,
        )
        for place in range(count)
    ]
    clips = [with_contents(clip, kind=first_frames, channels=channels, encoded=encoded) for clip in bare]
    what = count_of(count, "image" if frames == 1 else "clip")
    of = "" if frames == 1 else f" of {frames} frames"
    return AssumedBatch(clips, f"{what}{of} of {width}x{height} pixels, captions of {caption} tokens")


def with_contents(clip: VideoSample, *, kind: FirstFrames, channels: int, encoded: bool) -> VideoSample:
    """A clip of which nothing was decoded, with pixels or latents of one value, and with its first frame's."""
    clip = replace(
        clip,
        video=None if encoded else constant("uint8", 3, clip.num_frames, *clip.size),
        latents=constant("float32", channels, *clip.latent_shape) if encoded else None,
    )
    clip.image = None if kind == "none" else first_frame(clip, kind, channels=channels, encoded=encoded)
    return clip


def first_frame(clip: VideoSample, kind: FirstFrames, *, channels: int, encoded: bool) -> VideoSample:
    """What a loader gives of a clip's first frame on its own."""
    opening = kind.startswith("opening")
    shape = clip.latent_shape if opening else (1, *clip.latent_shape[1:])
    pixels = not encoded or kind in ("encoded each time", "opening and pixels")
    return replace(
        clip,
        video=constant("uint8", 3, 1, *clip.size) if pixels else None,
        latents=constant("float32", channels, *shape) if encoded and kind != "encoded each time" else None,
        latent_shape=shape,
        num_frames=clip.num_frames if opening else 1,
    )


def frames_of(dataset: VideoDataset.Config) -> int:
    """Frames of a clip: as many as the data set says; where it takes whole windows, the fewest that it takes."""
    if dataset.num_video_frames > 0:
        return dataset.num_video_frames
    return max(dataset.frame_buckets) if dataset.frame_buckets else dataset.min_frames


def room_of(cap: int | None, fill: float) -> float:
    """Tokens of a batch, strictly below the cap as in a loader; without a cap there is no end of them."""
    return math.inf if cap is None else max(1, min(int(fill * cap), cap - 1))


def most(data: Any) -> int:
    """Samples of a batch without a cap on tokens."""
    return int(data.max_samples_per_batch or 1)


def constant(dtype: str, *shape: int) -> Tensor:
    """Zeros that share one place in memory."""
    import torch

    return torch.zeros((), dtype=getattr(torch, dtype)).expand(shape)
