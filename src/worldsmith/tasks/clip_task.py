"""`ClipTask`: the task of all model families that learn from clips which a video VAE encodes."""

from __future__ import annotations

import copy
import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.data.assumed_batches import DummyBatch, assumed_clips, with_contents
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.latent_cache import EncodedCache, LatentCache
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.tasks.task import DummyData, SampleEncoder, Task

logger = logging.getLogger(__name__)

FROZEN = {"vae": "VAE", "text_encoder": "text encoder"}
"""Frozen components that cached inputs make unnecessary, and their names in messages."""
IDLE_STEPS = 100
"""Batches after which an unused component is freed."""
LOG_INTERVAL = 5.0
"""Seconds between two log lines on the progress of encoding."""

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_sample import FirstFrames, VideoSample


class ClipEncoder(SampleEncoder):
    """Encodes clips into the latent cache of a run, without training (`worldsmith encode`)."""

    task: ClipTask

    def require_cache(self) -> str:
        if not self.task.data.latent_cache:
            section = f"dataloader_{self.task.split}.latent_cache"
            raise UserError(f"{section} is '', so encoded clips would not be stored; set it to a folder")
        return self.task.data.latent_cache.removeprefix("file://")

    @property
    def cell_bytes(self) -> int:
        return 4 * self.task.encoded_channels

    def encode(self, sample: VideoSample) -> bool:
        parts = self.task.cached_parts(sample)
        missing = [part for part in parts if part.latents is None and not self.is_cached(part)]
        for part in missing:
            self.task.encode_part(part)
        return bool(missing)

    def encode_captions(self) -> None:
        for _, part in self.task.frozen_parts():
            part.release()

    def is_cached(self, part: VideoSample) -> bool:
        """Returns whether the latents of `part` (a clip or first frame) are cached, by this or another process."""
        cache, key = self.task.latent_cache, part.cache_key
        return cache is not None and key is not None and cache.has(key)


class DummyClips(DummyData):
    """Dummy clips for `worldsmith plan`, and access to the VAE and the text encoder of a `ClipTask`."""

    task: ClipTask

    def make_batch(self, *, fill: float = 1.0, encoded: bool = True) -> DummyBatch:
        return assumed_clips(
            self.task.data,
            self.task.grid,
            channels=self.task.encoded_channels,
            first_frames=self.task.first_frames,
            fill=fill,
            encoded=encoded,
        )

    def fill_sample(self, sample: VideoSample, *, encoded: bool = True) -> VideoSample:
        kind, channels = self.task.first_frames, self.task.encoded_channels
        return with_contents(sample, kind=kind, channels=channels, encoded=encoded)

    def sample_bytes(self, sample: VideoSample) -> tuple[int, int]:
        pixels = 3 * sample.num_frames * math.prod(sample.size)
        cells = sum(math.prod(part.latent_shape) for part in self.task.cached_parts(sample))
        return pixels, self.task.encoder.cell_bytes * cells

    def assume_cached(self) -> None:
        for _, part in self.task.frozen_parts():
            part.release()

    def encoder_size(self, sample: VideoSample) -> tuple[int, ...]:
        return (sample.num_frames, *sample.size)

    def load_encoders(self) -> None:
        getattr(self.task.model, "vae", None)  # the property builds it; a model may have none

    def encoder_tensors(self) -> Iterator[Tensor]:
        return self.tensors_of(*FROZEN, "image_encoder")

    def caption_tensors(self) -> Iterator[Tensor]:
        return self.tensors_of("text_encoder")

    def tensors_of(self, *names: str) -> Iterator[Tensor]:
        """Yields the weights and buffers of the model components with these names that exist and are loaded."""
        parts = (vars(self.task.model).get(name) for name in names)
        for module in (module for part in parts if part is not None for module in part.modules):
            yield from (*module.parameters(), *module.buffers())


class ClipTask(Task):
    """Base class of tasks on captioned clips, whose latents are stored in a cache. A batch is a list of `VideoSample`.

    The model must have `latent_grid`, `latent_fingerprint` and `encode`.
    """

    loader_class = VideoLoader
    encoder_class: ClassVar[type[SampleEncoder]] = ClipEncoder
    dummy_data_class = DummyClips
    terms = "record: one clip; sample: one window of a clip, the frames that one caption describes"

    data: VideoLoader.Config
    logged_at: float | None = None
    """Time of the last log line about encoding, or of the first encoded clip."""

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        for section in ("dataloader_train", "dataloader_val"):
            if isinstance(getattr(run, section), RobotLoader.Config) and not cls.accepts_robots(run):
                why = f"the model of the family '{run.model.name}' has no action heads, so it cannot use robot actions"
                raise WrongValueError({f"{section}.type": "RobotLoader"}, why=why, remedy="use VideoLoader")

    @classmethod
    def accepts_robots(cls, run: Any) -> bool:
        """Returns whether the model of `run`, a `RunConfig`, uses the actions of robot episodes."""
        return False

    @property
    @abstractmethod
    def tokenize(self) -> Callable[[str], list[int]]:
        """Function that tokenizes captions; it must be picklable, for the worker processes of the loader."""

    @property
    @abstractmethod
    def encoded_channels(self) -> int:
        """Channels of the tensor that the cache stores per clip."""

    @property
    def first_frames(self) -> FirstFrames:
        """Format in which the loader returns each clip's first frame in addition to the clip; "none": not at all."""
        return "none"

    @property
    def required_latent_shape(self) -> tuple[int, int, int] | None:
        """The latent shape (t, h, w) that every clip must have; None: any shape."""
        return None

    def loader(self, *, dry: bool = False) -> VideoLoader:
        settings = copy.deepcopy(self.data)
        if dry:
            settings.num_workers, settings.latent_cache = 0, ""
        return settings.build(
            grid=self.grid,
            tokenizer=self.tokenize,  # loaded once, here, and not in every worker
            latent_cache=self.latent_cache if settings.latent_cache else None,
            first_frames=self.first_frames,
            required_latent_shape=self.required_latent_shape,
            **self.loader_arguments(),
        )

    @property
    def grid(self) -> LatentGrid:
        return LatentGrid(*self.model.latent_grid)

    @cached_property
    def latent_cache(self) -> LatentCache | None:
        """Latent cache of the run; None: the run has no cache.

        The fingerprint is computed from the weights of the VAE, which are freed afterwards until a clip must be
        encoded.
        """
        folder = self.data.latent_cache
        if not folder:
            return None
        cache = LatentCache(folder, self.model.latent_fingerprint)
        if vae := vars(self.model).get("vae"):
            vae.release()
        return cache

    def latents(self, batch: Sequence[VideoSample]) -> list[Tensor]:
        """Returns the latents [C, t, h, w] of all samples on the model's device, cached or encoded.

        All ranks of a context-parallel group must call it: they divide the encoding and exchange the results.
        """
        from worldsmith.distributed.context_parallel import divide_work

        shapes = [(self.encoded_channels, *sample.latent_shape) for sample in batch]

        def make(index: int) -> Tensor:
            if batch[index].latents is None:
                self.long_work = "encoding", index / len(batch)
                if self.in_first_step:
                    self._log_encoding(index, len(batch))
            return self.encode_part(batch[index]).to(self.model.device)

        try:
            return divide_work(self.world, shapes, make)
        finally:
            self.long_work = None
            self._release_idle()

    def encode_part(self, part: VideoSample) -> Tensor:
        """Returns the latents [C, t, h, w] of a clip or of its first frame, from the cache or encoded by the VAE."""
        return self.cached_latents(part, self.model.encode)

    def cached_latents(self, part: VideoSample, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the latents of a sample: those that the loader found in the cache, else encoded and cached now.

        Args:
            part: A sample with latents or a video.
            encode: Encodes the video, uint8 [3, T, H, W], to latents [C, t, h, w].

        Raises:
            ValueError: If the sample has neither latents nor a video.
        """
        if part.latents is not None:
            return part.latents
        if part.video is None:
            raise ValueError(f"sample {part.key} has neither latents nor a video")
        latents = encode(part.video)
        if self.latent_cache is not None and part.cache_key is not None:
            self.latent_cache.put(part.cache_key, latents)
        return latents

    def _release_idle(self) -> None:
        """Frees frozen components that were not used for `IDLE_STEPS` batches; the next use loads them again."""
        if self.latent_cache is None:
            return
        for name, part in self.frozen_parts():
            part.idle += 1
            if part.idle == IDLE_STEPS and part.release():
                logger.info(
                    "the %s was not used for %d batches, since all inputs are cached: its memory is freed",
                    *(FROZEN[name], IDLE_STEPS),
                )

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Context manager for sample generation: finally frees the VAE and text encoder if they were not loaded before.

        Without a latent cache, both stay loaded, since training needs them.
        """
        before = {name: (bool(part.modules), part.idle) for name, part in self.frozen_parts()}
        try:
            yield
        finally:
            for name, part in self.frozen_parts():
                was_loaded, part.idle = before.get(name, (False, 0))
                if not was_loaded and self.latent_cache is not None:
                    part.release()
            if self.world.device.startswith("cuda"):
                import torch

                torch.cuda.empty_cache()

    def frozen_parts(self) -> Iterator[tuple[str, Any]]:
        """Yields ("vae", VAE) and ("text_encoder", text encoder), as far as the model has built them."""
        parts = ((name, vars(self.model).get(name)) for name in FROZEN)
        return ((name, part) for name, part in parts if part is not None)

    def _log_encoding(self, done: int, count: int) -> None:
        """Logs that `done` of `count` clips of a batch are encoded, but at most once every few seconds."""
        now = time.monotonic()
        if self.logged_at is None:
            self.logged_at = now
        elif now - self.logged_at >= LOG_INTERVAL:
            self.logged_at = now
            phase = "first step" if self.split == "train" else "first validation"
            logger.info("%s: %d of %d clips of the pack are encoded", phase, done, count)

    @property
    def caches(self) -> list[EncodedCache]:
        """Caches of the run, which the loss reads and fills."""
        return [self.latent_cache] if self.latent_cache else []

    def counts(self) -> dict[str, int]:
        return {f"cache_{name}": sum(getattr(cache, name) for cache in self.caches) for name in ("unwritten", "late")}

    def expect_cached(self) -> None:
        for cache in self.caches:
            cache.expects_hits = True
        if self.first_frames == "encoded in every epoch" and self.world.is_main:
            logger.warning("the VAE stays next to the network: it encodes first frames with noise in every step")

    def cached_parts(self, sample: VideoSample) -> list[VideoSample]:
        """Returns the samples that are latent cache entries: `sample` and, if it is cached too, its first frame."""
        return [sample, sample.image] if sample.image and self.first_frames != "encoded in every epoch" else [sample]

    def fills_cache(self, batch: Sequence[VideoSample]) -> bool:
        parts = (part for sample in batch for part in self.cached_parts(sample))
        return self.latent_cache is not None and any(part.latents is None for part in parts)


def cached_latents_of(samples: Sequence[VideoSample | None]) -> list[Tensor | None]:
    """Returns the cached latents of each sample; None for a sample without them, or for None."""
    return [None if sample is None else sample.latents for sample in samples]


def with_latents(samples: Sequence[VideoSample], latents: Sequence[Tensor | None]) -> list[VideoSample]:
    """Returns copies of the samples with other cached latents, such as the same ones on the device."""
    return [replace(sample, latents=own) for sample, own in zip(samples, latents, strict=True)]
