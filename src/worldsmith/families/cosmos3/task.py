"""The video generator learns velocities: clips become latents, latents a noisy pack, and its velocities a loss."""

from __future__ import annotations

import copy
import logging
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from worldsmith.assets import is_shipped
from worldsmith.data.clips.resolution import RESOLUTIONS
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3.attention.modes import describe_modes
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.models.video_model import SampleLayout
from worldsmith.objectives.objective import LossSum
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.tasks.clip_task import ClipTask
from worldsmith.tasks.task import Preview

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_loader import VideoSample


class Cosmos3Task(ClipTask):
    """Text, image and video to video, many clips in one packed sequence. A batch is a list of `VideoSample`."""

    objective_class = RectifiedFlow
    small_recipe = "vision_sft_tiny"

    model: Cosmos3Generator
    objective: RectifiedFlow

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        for data in (run.dataloader_train, run.dataloader_val):
            if data is not None:
                run.objective.check_tier(data.dataset.resolution)

    @property
    def tokenize(self) -> Callable[[str], list[int]]:
        return self.model.text_tokenizer.encode

    @property
    def encoded_channels(self) -> int:
        return self.model.latent_channels

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

    def count_flops(self, batch: Sequence[VideoSample]) -> int:
        """Of the network; the VAE has no part in it."""
        from worldsmith.families.cosmos3.network.step_flops import StepCounter

        pack = self.model.pack([layout_of(sample) for sample in batch])
        return StepCounter(self.model.network, pack.text_lengths, pack.gen_lengths).count().total

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
