"""The video generator learns velocities: clips become latents, latents a noisy pack, and its velocities a loss."""

from __future__ import annotations

import copy
import logging
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.assets import is_shipped
from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_cache import LatentCache, latents_of
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import RESOLUTIONS
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.models.cosmos3.attention.modes import describe_modes
from worldsmith.models.cosmos3.generator import Cosmos3Generator
from worldsmith.models.video_model import SampleLayout
from worldsmith.objectives.objective import LossSum
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.tasks.task import Preview, Task

logger = logging.getLogger(__name__)

SAY_EVERY = 5.0
"""Seconds between two lines on clips that are encoded."""

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.sample import VideoSample
    from worldsmith.data.clips.summary import DatasetSummary
    from worldsmith.data.clips.video_dataset import VideoDataset
    from worldsmith.data.report.report import DataReport


class Cosmos3Task(Task):
    """Text, image and video to video, many clips in one packed sequence. A batch is a list of `VideoSample`."""

    objective_class = RectifiedFlow
    loader_class = VideoLoader
    has_encoder = True
    small_recipe = "vision_sft_tiny"

    model: Cosmos3Generator
    objective: RectifiedFlow
    data: VideoLoader.Config
    said_at: float | None = None
    """When it was last said that clips are encoded, or when that began."""

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        for data in (run.dataloader_train, run.dataloader_val):
            if data is not None:
                run.objective.check_tier(data.dataset.resolution)

    def loader(self, *, dry: bool = False) -> VideoLoader:
        settings = copy.deepcopy(self.data)
        if dry:
            settings.num_workers, settings.latent_cache = 0, ""
        loader: VideoLoader = settings.build(
            grid=self.grid,
            tokenizer=self.model.text_tokenizer.encode,  # loaded once, here, and not in every worker
            latent_cache=self.latent_cache if settings.latent_cache else None,
            **self.place_in_run(),
        )
        return loader

    @property
    def grid(self) -> LatentGrid:
        return LatentGrid(*self.model.latent_grid)

    @cached_property
    def latent_cache(self) -> LatentCache | None:
        folder = self.data.latent_cache
        return LatentCache(Path(folder), self.model.latent_fingerprint) if folder else None

    def identify(self, batch: Sequence[VideoSample]) -> Any:
        return [[sample.position, layout_of(sample)] for sample in batch]

    def weigh(self, batch: Sequence[VideoSample]) -> float:
        return self.objective.weigh(batch)

    def loss(self, batch: Sequence[VideoSample], *, seed: int) -> LossSum:
        latents = self.latents(batch)
        pack = self.model.pack([layout_of(sample) for sample in batch])
        draws = self.objective.draw(batch, latents, seed=seed)
        velocities = self.model.network(pack, *self.objective.inputs(batch, latents, draws))
        losses = self.objective.losses(velocities, batch, latents, draws)
        return self.objective.add_up(losses, batch, draws, tokens=pack.num_tokens)

    def latents(self, batch: Sequence[VideoSample]) -> list[Tensor]:
        """Every sample's latents; the ranks of a context-parallel group share the encoding and then have equal ones."""
        from worldsmith.distributed.context_parallel import divide_work

        shapes = [(self.model.config.network.latent_channel, *sample.latent_shape) for sample in batch]

        def make(index: int) -> Tensor:
            if batch[index].latents is None:
                self.long_work = "encoding", index / len(batch)
                if self.in_first_step:
                    self._say_encoding(index, len(batch))
            return latents_of(batch[index], self.model.encode, self.latent_cache).to(self.model.device)

        try:
            return divide_work(self.world, shapes, make)
        finally:
            self.long_work = None

    def _say_encoding(self, done: int, count: int) -> None:
        """Says every few seconds what keeps the first step."""
        now = time.monotonic()
        if self.said_at is None:
            self.said_at = now
        elif now - self.said_at >= SAY_EVERY:
            self.said_at = now
            what = "first step" if self.split == "train" else "first validation"
            logger.info("%s: %d of %d clips of the pack are encoded", what, done, count)

    def count_flops(self, batch: Sequence[VideoSample]) -> int:
        """Of the network; the VAE has no part in it."""
        from worldsmith.models.cosmos3.step_flops import StepCounter

        pack = self.model.pack([layout_of(sample) for sample in batch])
        return StepCounter(self.model.network, pack.text_lengths, pack.gen_lengths).count().total

    def counts(self) -> dict[str, int]:
        return {"cache_unwritten": self.latent_cache.unwritten if self.latent_cache else 0}

    def compile_encoder(self, tiers: Sequence[str]) -> None:
        self.model.vae.compile_encoder()
        for tier in tiers:
            for width, height in RESOLUTIONS[tier].values():
                self.model.encode(self.black_clip(width, height))

    def black_clip(self, width: int, height: int) -> Tensor:
        """As long as all clips of the run where that is fixed, else the first frame and two windows of the encoder."""
        import torch

        frames = self.data.dataset.num_video_frames
        length = self.grid.usable_frames(frames) if frames > 0 else 1 + 2 * self.model.vae.window(height, width)
        return torch.zeros(3, length, height, width, dtype=torch.uint8)

    def expectation(self, run: Any) -> str | None:
        is_random = run.checkpoint.load_path is None
        is_tiny = is_shipped(self.model.config.tokenizer.vae_path)
        if not is_random and not is_tiny:
            return None
        found = [*["random weights"] * is_random, *["a tiny VAE"] * is_tiny]
        wanted = [
            *["released weights (checkpoint.load_path)"] * is_random,
            *["the released VAE (model.config.tokenizer.vae_path)"] * is_tiny,
        ]
        return f"soft videos, shapes and motion at best: {' and '.join(found)}; real ones need {' and '.join(wanted)}"

    def remarks(self) -> Iterator[tuple[str, str]]:
        yield "attention", describe_modes(self.model.network.attention)

    def preview(self, loader: VideoLoader) -> Preview:
        """One pack that is really read and tokenised; the VAE encodes the first frames."""
        pack = next(iter(loader))
        video = pack[0].video
        assert video is not None  # there is no cache whose latents would stand for it
        tokenizer = copy.deepcopy(self.model.config.tokenizer)
        tokenizer.precision = "float32"  # on many processors far quicker than bfloat16
        latents = tokenizer.build(device="cpu").encode(video[:, :5])
        shape = [latents.shape[0], pack[0].latent_shape[0], *latents.shape[2:]]
        return Preview(*self.size(pack), first=f"{pack[0].key} has latents {shape}, {told(pack[0].caption)}")

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
        from worldsmith.data.clips.summary import summarize

        return summarize(loader.dataset, self.grid, max_tokens=loader.config.max_sequence_length)

    def traces(self, dataset: VideoDataset) -> Iterator[str]:
        return (str(Path(window.path).resolve()) for window in dataset.windows)

    def require_cache(self) -> Path:
        if not self.data.latent_cache:
            section = f"dataloader_{self.split}.latent_cache"
            raise UserError(f"{section} is '', so nothing would be kept; set it to a folder")
        return Path(self.data.latent_cache)

    def encode_ahead(self, sample: VideoSample) -> bool:
        if sample.latents is not None:
            return False
        if self.latent_cache and sample.cache_key and self.latent_cache.path_for(sample.cache_key).exists():
            return False  # another process was quicker
        latents_of(sample, self.model.encode, self.latent_cache)
        return True

    def contents(self, dataset: VideoDataset) -> Iterator[tuple[str, Any]]:
        return dataset.contents()

    @property
    def cell_bytes(self) -> int:
        return 4 * self.model.latent_channels

    def fills_cache(self, batch: Sequence[VideoSample]) -> bool:
        return self.latent_cache is not None and any(sample.latents is None for sample in batch)


def told(caption: str) -> str:
    """The caption as the model gets it, shortened for people."""
    return (
        f'its caption is "{textwrap.shorten(caption, 80, placeholder=" …")}"' if caption else "its caption is emptied"
    )


def layout_of(sample: VideoSample) -> SampleLayout:
    return SampleLayout(
        text_ids=sample.text_ids,
        latent_shape=sample.latent_shape,
        fps=sample.fps,
        condition_frames=sample.condition_frames,
    )


FAMILY = Cosmos3Task
