"""Builds the sample of a clip for a position of the data stream, in a data loader worker."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import torch

from worldsmith.data.clips.captions import choose_caption, render_caption
from worldsmith.data.clips.clip_dataset import ClipDataset
from worldsmith.data.clips.clip_frames import Framing, read_frames
from worldsmith.data.clips.inspect_clips import InspectedClip, features_of, inspect_window
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_sample import FirstFrames, VideoSample
from worldsmith.data.clips.window_index import Window
from worldsmith.data.latent_cache import LatentCache
from worldsmith.data.stream.errors import SampleError, check_text
from worldsmith.data.stream.positions import sample_rng
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import Features, SampleMaker, SampleResult, StreamSettings
from worldsmith.data.video_decoder import examine


class ClipMaker(SampleMaker[VideoSample]):
    """Builds the `VideoSample` at a position of the data stream: pixels or cached latents, and caption token IDs.

    Args:
        dataset: Dataset of clip windows.
        config: Seed, shuffling and token limit of the data loader.
        grid: Latent grid of the model.
        tokenizer: Maps a caption to token IDs.
        max_caption_tokens: Max number of caption tokens; longer captions are truncated.
        latent_cache: Cache of latents; None: samples have pixels.
        first_frames: Form of the first frame that each sample contains in addition to its clip.
        required_latent_shape: Required latent shape (t, h, w); clips of another shape are rejected. None: any shape.
    """

    dataset: VideoDataset

    def __init__(
        self,
        dataset: ClipDataset,
        config: StreamSettings,
        *,
        grid: LatentGrid,
        tokenizer: Callable[[str], list[int]],
        max_caption_tokens: int,
        latent_cache: LatentCache | None,
        first_frames: FirstFrames = "none",
        required_latent_shape: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__(dataset, config)
        self.grid = grid
        self.tokenizer = tokenizer
        self.max_caption_tokens = max_caption_tokens
        self.latent_cache = latent_cache
        self.first_frames = first_frames
        self.required_latent_shape = required_latent_shape

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        window = self.window(position)
        return Rejection(window.key, reason, detail, window.path, window.line)

    def features(self, sample: VideoSample) -> Features:
        _, info = examine(self.window(sample.position).path)
        return features_of(info, sample.num_frames, sample.size, sample.fps)

    def shape(self, sample: VideoSample) -> tuple[int, int, int]:
        return sample.latent_shape

    def cells(self, sample: VideoSample) -> int:
        return math.prod(sample.latent_shape)

    def window(self, position: int) -> Window:
        """Returns the clip window at a stream position."""
        windows = self.dataset.choices(self.index(position))
        return sample_rng(self.seed, position, "window").choice(windows)

    def make(self, position: int) -> SampleResult[VideoSample]:
        config, window = self.dataset.config, self.window(position)
        part = inspect_window(window, config, self.grid, sample_rng(self.seed, position, "frames"))
        self._check_shape(part.latent_shape, str(part))
        notes: dict[str, str] = {}
        caption = self._caption(window, position, part)
        text_ids = self._text_ids(caption, window.key, notes)
        num_tokens = self.grid.sample_tokens(len(text_ids), part.latent_shape)
        self.check_size(num_tokens, str(part))
        if part.info.variable_rate:
            average = f"their average rate of {part.fps:.2f} fps is used"
            notes["variable_rate"] = f"{window.key}: frames are unevenly spaced; {average}"

        if window.end_frame >= part.info.num_frames:
            ends = f"ends at frame {window.end_frame}, but the clip ends at {part.info.num_frames - 1}"
            notes["windows_shortened"] = f"{window.key}: {ends}; only the frames inside the clip are used"

        key, latents = self._key(window, part, part.selection.count), None
        if self.latent_cache is not None and key is not None:
            latents, outcome = self.latent_cache.look_up(key, part.latent_shape)
            notes[f"cache_{outcome}"] = ""
        video = self._read(window, part, part.selection.count) if latents is None and self.decodes else None
        sample = VideoSample(
            key=window.key,
            position=position,
            text_ids=text_ids,
            caption=caption,
            video=video,
            latents=latents,
            latent_shape=part.latent_shape,
            size=part.size,
            num_frames=part.selection.count,
            fps=part.fps,
            condition_frames=draw_condition_frames(
                config.conditioning_config, part.latent_shape[0], sample_rng(self.seed, position, "conditioning")
            ),
            num_tokens=num_tokens,
            cache_key=key,
            resolution=config.resolution,
        )
        if self.first_frames != "none":
            sample.image = self._image(sample, window, part)
        return SampleResult(sample, notes)

    def _check_shape(self, shape: tuple[int, int, int], what: str) -> None:
        """Raises SampleError (other_shape) if the network requires another latent shape; `what` names the clip."""
        if self.required_latent_shape not in (None, shape):
            raise SampleError(
                "other_shape",
                f"{what}: expected latents of shape {self.required_latent_shape}, for which the network has "
                "position embeddings",
            )

    def _image(self, sample: VideoSample, window: Window, part: InspectedClip) -> VideoSample:
        """Returns a sample of only the first frame of a clip, with the pixels or latents that `first_frames` requires.

        `sample` is the sample of the complete clip, and `part` the inspection result of its window. If `sample` has
        cached latents, at most the first frame is decoded.
        """
        count = part.selection.count if self.first_frames.startswith("opening") else 1
        shape = part.latent_shape if count > 1 else (1, *part.latent_shape[1:])
        kept = [1] if count == 1 else [1, count]
        key = self._key(window, part, *kept) if self.first_frames != "encoded in every epoch" else None
        latents = self.latent_cache.get(key, shape) if self.latent_cache is not None and key is not None else None
        video = None
        if (latents is None and self.decodes) or self.first_frames == "opening and pixels":
            video = self._read(window, part, 1) if sample.video is None else sample.video[:, :1].clone()
        return replace(sample, video=video, latents=latents, latent_shape=shape, num_frames=count, cache_key=key)

    def _key(self, window: Window, part: InspectedClip, *counts: int) -> str | None:
        """Returns the cache key of the first `counts[0]` used frames, padded with zero frames to `counts[1]` if given.

        `part` is the inspection result of the window. Returns None without a cache.
        """
        if self.latent_cache is None:
            return None
        return self.latent_cache.clip_key(window, part.status, part.selection, part.size, *counts)

    def _read(self, window: Window, part: InspectedClip, count: int) -> torch.Tensor:
        """Decodes only the first `count` frames selected in `part`, and returns them as uint8 [3, count, H, W]."""
        height, width = part.size
        framing = Framing((width, height), "training")
        return torch.from_numpy(read_frames(window.path, part.info, part.selection.indices[:count], framing))

    def _text_ids(self, caption: str, key: str, notes: dict[str, str]) -> list[int]:
        ids, most = self.tokenizer(caption), self.max_caption_tokens
        if len(ids) > most:
            notes["captions_truncated"] = f"caption of {key} has {len(ids)} tokens, truncated to {most}"
        return list(ids[:most])

    def _caption(self, window: Window, position: int, part: InspectedClip) -> str:
        config = self.dataset.config
        rng = sample_rng(self.seed, position, "caption")
        caption = choose_caption(window.captions, config.caption_keys, rng)
        if caption is None:
            raise SampleError("no_caption", "none of the caption keys of the window contains text")
        check_text(caption.text, f"the caption '{caption.key}'")
        return render_caption(
            caption,
            suffix=config.caption_suffix,
            append_duration_fps=config.append_duration_fps_timestamps,
            append_resolution=config.append_resolution_info,
            dropout_rate=config.cfg_dropout_rate,
            dropout_keeps_metadata=config.cfg_dropout_keep_metadata,
            num_frames=part.selection.count,
            fps=part.fps,
            size=part.size,
            rng=sample_rng(self.seed, position, "dropout"),
        )


def draw_condition_frames(weights: dict[str, float], latent_frames: int, rng: random.Random) -> int:
    """Samples the number of conditioning frames of a sample: latent frames at its start that get no noise.

    Args:
        weights: Sampling weight by number of conditioning frames (as text); empty: the result is 0.
        latent_frames: Number of latent frames of the sample; the result is at most `latent_frames - 1`.
        rng: Random generator of the sample.
    """
    if not weights:
        return 0
    frames = sorted(int(n) for n in weights)
    sampled = rng.choices(frames, weights=[sum(w for n, w in weights.items() if int(n) == f) for f in frames])[0]
    return min(sampled, latent_frames - 1)
