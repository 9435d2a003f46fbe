"""`ClipTask`: what all families have in common that learn from clips which a video VAE encodes."""

from __future__ import annotations

import copy
import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError
from worldsmith.data.assumed_batches import AssumedBatch, assumed_clips, with_contents
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.encoded_cache import LatentCache
from worldsmith.tasks.task import Task

logger = logging.getLogger(__name__)

FROZEN = {"vae": "VAE", "text_encoder": "text encoder"}
"""Parts of a model that a cache can replace."""
IDLE_STEPS = 100
"""Batches after which a part that was not needed is freed."""
SAY_EVERY = 5.0
"""Seconds between two lines on clips that are encoded."""

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.inspect_clips import DatasetSummary
    from worldsmith.data.clips.video_dataset import VideoDataset
    from worldsmith.data.clips.video_sample import FirstFrames, VideoSample
    from worldsmith.data.data_report import DataReport


class ClipTask(Task):
    """Captioned clips, whose latents are kept in a cache. A batch is a list of `VideoSample`.

    The model has `latent_grid`, `latent_fingerprint` and `encode`.
    """

    loader_class = VideoLoader
    has_encoder = True
    terms = "record: one clip; sample: one window of a clip, the frames that one caption describes"

    data: VideoLoader.Config
    said_at: float | None = None
    """When it was last said that clips are encoded, or when that began."""

    @property
    @abstractmethod
    def tokenize(self) -> Callable[[str], list[int]]:
        """From a caption to its ids; is sent to worker processes."""

    @property
    @abstractmethod
    def encoded_channels(self) -> int:
        """Channels of what the cache keeps of a clip."""

    @property
    def first_frames(self) -> FirstFrames:
        """What the loader gives of each clip's first frame on its own."""
        return "none"

    @property
    def only_shape(self) -> tuple[int, int, int] | None:
        """The latent shape (t, h, w) of every clip, where the network takes no other."""
        return None

    def loader(self, *, dry: bool = False) -> VideoLoader:
        settings = copy.deepcopy(self.data)
        if dry:
            settings.num_workers, settings.latent_cache = 0, ""
        loader: VideoLoader = settings.build(
            grid=self.grid,
            tokenizer=self.tokenize,  # loaded once, here, and not in every worker
            latent_cache=self.latent_cache if settings.latent_cache else None,
            first_frames=self.first_frames,
            only_shape=self.only_shape,
            **self.place_in_run(),
        )
        return loader

    @property
    def grid(self) -> LatentGrid:
        return LatentGrid(*self.model.latent_grid)

    @cached_property
    def latent_cache(self) -> LatentCache | None:
        """The VAE, whose weights the fingerprint is made of, gives their memory back until a clip is missing."""
        folder = self.data.latent_cache
        if not folder:
            return None
        cache = LatentCache(Path(folder), self.model.latent_fingerprint)
        if vae := vars(self.model).get("vae"):
            vae.release()
        return cache

    def latents(self, batch: Sequence[VideoSample]) -> list[Tensor]:
        """Every sample's latents; the ranks of a context-parallel group share the encoding and then have equal ones."""
        from worldsmith.distributed.context_parallel import divide_work

        shapes = [(self.encoded_channels, *sample.latent_shape) for sample in batch]

        def make(index: int) -> Tensor:
            if batch[index].latents is None:
                self.long_work = "encoding", index / len(batch)
                if self.in_first_step:
                    self._say_encoding(index, len(batch))
            return self.encode_part(batch[index]).to(self.model.device)

        try:
            return divide_work(self.world, shapes, make)
        finally:
            self.long_work = None
            self._let_go()

    def encode_part(self, part: VideoSample) -> Tensor:
        """Returns the latents of a clip, or of the image that belongs to it."""
        return self.cached_latents(part, self.model.encode)

    def cached_latents(self, part: VideoSample, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the latents [C, t, h, w] of a sample: its own, or encoded now and then stored in the cache."""
        if part.latents is not None:
            return part.latents
        if part.video is None:
            raise ValueError(f"sample {part.key} has neither latents nor a video")
        latents = encode(part.video)
        if self.latent_cache is not None and part.cache_key is not None:
            self.latent_cache.put(part.cache_key, latents)
        return latents

    def _let_go(self) -> None:
        """Frees the frozen parts that a cache has made idle; they come back when they are needed."""
        if self.latent_cache is None:
            return
        for name, part in self._frozen():
            part.idle += 1
            if part.idle == IDLE_STEPS and part.release():
                logger.info(
                    "the %s was not needed for %d batches, since all is cached: its memory is free",
                    *(FROZEN[name], IDLE_STEPS),
                )

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Frees what training does without, since all is cached, so that it finds the memory that it had."""
        before = {name: (bool(part.modules), part.idle) for name, part in self._frozen()}
        try:
            yield
        finally:
            for name, part in self._frozen():
                was_loaded, part.idle = before.get(name, (False, 0))
                if not was_loaded and self.latent_cache is not None:
                    part.release()
            if self.world.device.startswith("cuda"):
                import torch

                torch.cuda.empty_cache()

    def _frozen(self) -> Iterator[tuple[str, Any]]:
        """The VAE and the text encoder, as far as the model has built them, by the names of `FROZEN`."""
        parts = ((name, vars(self.model).get(name)) for name in FROZEN)
        return ((name, part) for name, part in parts if part is not None)

    def _say_encoding(self, done: int, count: int) -> None:
        """Says every few seconds what keeps the first step."""
        now = time.monotonic()
        if self.said_at is None:
            self.said_at = now
        elif now - self.said_at >= SAY_EVERY:
            self.said_at = now
            what = "first step" if self.split == "train" else "first validation"
            logger.info("%s: %d of %d clips of the pack are encoded", what, done, count)

    def assumed_batch(self, *, fill: float = 1.0, encoded: bool = True) -> AssumedBatch:
        return assumed_clips(
            self.data,
            self.grid,
            channels=self.encoded_channels,
            first_frames=self.first_frames,
            fill=fill,
            encoded=encoded,
        )

    def stand_in(self, sample: VideoSample, *, encoded: bool = True) -> VideoSample:
        return with_contents(sample, kind=self.first_frames, channels=self.encoded_channels, encoded=encoded)

    def assume_cached(self) -> None:
        for _, part in self._frozen():
            part.release()

    def encoder_size(self, sample: VideoSample) -> tuple[int, ...]:
        return (sample.num_frames, *sample.size)

    def encoder_tensors(self) -> Iterator[Tensor]:
        return self._tensors_of(*FROZEN, "image_encoder")

    def caption_tensors(self) -> Iterator[Tensor]:
        return self._tensors_of("text_encoder")

    def _tensors_of(self, *names: str) -> Iterator[Tensor]:
        parts = (vars(self.model).get(name) for name in names)
        for module in (module for part in parts if part is not None for module in part.modules):
            yield from (*module.parameters(), *module.buffers())

    def sample_bytes(self, sample: VideoSample) -> tuple[int, int]:
        pixels = 3 * sample.num_frames * math.prod(sample.size)
        return pixels, self.cell_bytes * sum(math.prod(part.latent_shape) for part in self._cached(sample))

    def counts(self) -> dict[str, int]:
        return {"cache_unwritten": self.latent_cache.unwritten if self.latent_cache else 0}

    def describe_data(self, loader: VideoLoader) -> str:
        return str(self.summary(loader))

    def data_report(self, loader: VideoLoader) -> DataReport:
        """With a few clips that were opened."""
        report, summary = super().data_report(loader), self.summary(loader)
        report.looked_at = summary.probed
        report.leave_out(summary.rejections[len(loader.dataset.rejections) :])
        report.count_features(summary.features)
        return report

    def summary(self, loader: VideoLoader) -> DatasetSummary:
        from worldsmith.data.clips.inspect_clips import summarize_dataset

        return summarize_dataset(loader.dataset, self.grid, max_tokens=loader.config.max_sequence_length)

    def traces(self, dataset: VideoDataset) -> Iterator[str]:
        return (str(Path(window.path).resolve()) for window in dataset.windows)

    def require_cache(self) -> Path:
        if not self.data.latent_cache:
            section = f"dataloader_{self.split}.latent_cache"
            raise UserError(f"{section} is '', so nothing would be kept; set it to a folder")
        return Path(self.data.latent_cache)

    def encode_ahead(self, sample: VideoSample) -> bool:
        missing = [part for part in self._cached(sample) if part.latents is None and not self._is_kept(part)]
        for part in missing:
            self.encode_part(part)
        return bool(missing)

    def _cached(self, sample: VideoSample) -> list[VideoSample]:
        """What a cache keeps of a sample: the clip, and its first frame where that is encoded once."""
        return [sample, sample.image] if sample.image and self.first_frames != "encoded each time" else [sample]

    def _is_kept(self, part: VideoSample) -> bool:
        """Whether another process was quicker."""
        key = part.cache_key
        return self.latent_cache is not None and key is not None and self.latent_cache.path_for(key).exists()

    def contents(self, dataset: VideoDataset) -> Iterator[tuple[str, Any]]:
        return dataset.contents()

    @property
    def cell_bytes(self) -> int:
        return 4 * self.encoded_channels

    def fills_cache(self, batch: Sequence[VideoSample]) -> bool:
        parts = (part for sample in batch for part in self._cached(sample))
        return self.latent_cache is not None and any(part.latents is None for part in parts)
