"""CogVideoX learns v: clips become latents, latents of one shape a noisy batch, and the network's answers a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from worldsmith.config import WrongValueError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.models.cogvideox.generator import CogVideoXGenerator
from worldsmith.objectives.objective import LossSum
from worldsmith.objectives.v_prediction import POSTERIOR_STREAM, VPrediction
from worldsmith.tasks.clip_task import ClipTask

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.sample import VideoSample

DECODED_FRAMES = 8
"""Clips of 8k+1 frames alone come out of diffusers' decoder as long as they went in."""


@dataclass(frozen=True, slots=True)
class DecodableGrid(LatentGrid):
    def usable_frames(self, num_frames: int) -> int:
        return (num_frames - 1) // DECODED_FRAMES * DECODED_FRAMES + 1


class CogVideoXTask(ClipTask):
    """Text to video, clips of one shape in a batch, each with its own timestep."""

    objective_class = VPrediction

    model: CogVideoXGenerator
    objective: VPrediction

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        model = run.model.config
        refuse_other_inputs(model)
        for section in ("dataloader_train", "dataloader_val"):
            data = getattr(run, section)
            if data is not None:
                check_data(section, data, model.text_encoder.max_length)

    @property
    def grid(self) -> LatentGrid:
        return DecodableGrid(*self.model.config.latent_grid)

    @property
    def tokenize(self) -> Callable[[str], list[int]]:
        from worldsmith.models.cogvideox.text_encoder import read_caption

        return partial(read_caption, self.model.text_encoder.tokenizer)

    @property
    def encoded_channels(self) -> int:
        """Mean and log variance."""
        return 2 * self.model.config.network.out_channels

    def loss(self, batch: Sequence[VideoSample], *, seed: int) -> LossSum:
        model = self.model
        latents = self.draw_latents(batch, seed=seed)
        draws = self.objective.draw(batch, list(latents), seed=seed)
        noisy, timesteps = self.objective.inputs(latents, draws)
        text = model.read([None if self.is_dropped(sample) else sample.text_ids for sample in batch])
        answers = model.network(  # diffusers has frames before channels
            hidden_states=noisy.transpose(1, 2).to(model.dtype),
            encoder_hidden_states=text.to(model.dtype),
            timestep=timesteps,
            image_rotary_emb=model.rotary(batch[0].latent_shape),
            return_dict=False,
        )[0].transpose(1, 2)
        losses = self.objective.losses(answers, latents, draws)
        return self.objective.add_up(losses, draws, tokens=self.tokens(batch))

    def draw_latents(self, batch: Sequence[VideoSample], *, seed: int) -> Tensor:
        """[n, C, t, h, w]: drawn anew from each clip's moments, by seed and position."""
        import torch

        from worldsmith.objectives.noise_schedule import random_noise

        drawn = []
        for sample, moments in zip(batch, self.latents(batch), strict=True):
            shape = (moments.shape[0] // 2, *moments.shape[1:])
            noise = random_noise(shape, seed=seed, position=sample.position, stream=POSTERIOR_STREAM)
            drawn.append(self.model.vae.latents(moments, noise.to(moments.device)))
        return torch.stack(drawn)

    def is_dropped(self, sample: VideoSample) -> bool:
        return not sample.caption and self.model.config.text_encoder.dropped_captions == "zeros"

    def tokens(self, batch: Sequence[VideoSample]) -> int:
        """What the network reads, padding of the texts included."""
        return len(batch) * (self.model.config.text_encoder.max_length + self.grid.vision_tokens(batch[0].latent_shape))


def refuse_other_inputs(model: CogVideoXGenerator.Config) -> None:
    """Raises WrongValueError for the networks of CogVideoX 1.5 and of image to video: they come later."""
    network = model.network
    section = "model.config.network"
    images = {f"{section}.in_channels": network.in_channels, f"{section}.out_channels": network.out_channels}
    if network.in_channels != network.out_channels or network.use_learned_positional_embeddings:
        images[f"{section}.use_learned_positional_embeddings"] = network.use_learned_positional_embeddings
        remedy = "take the network of a text-to-video model: in_channels = out_channels, no learned table"
        raise WrongValueError(images, why="image to video is not trained by this version", remedy=remedy)
    later = {f"{section}.{name}": getattr(network, name) for name in ("patch_size_t", "ofs_embed_dim")}
    if any(value is not None for value in later.values()):
        raise WrongValueError(later, why="CogVideoX 1.5 is not trained by this version", remedy="leave them out")


def check_data(section: str, data: Any, max_length: int) -> None:
    """Raises WrongValueError for batches that cannot be stacked, for captions of two lengths and for clean frames."""
    if data.packer != "alike":
        why = "the network takes clips of one shape in a batch"
        raise WrongValueError({f"{section}.packer": data.packer}, why=why, remedy="write 'alike'")
    if data.max_caption_tokens != max_length:
        lengths = {f"{section}.max_caption_tokens": data.max_caption_tokens}
        lengths["model.config.text_encoder.max_length"] = max_length
        raise WrongValueError(lengths, why="captions are cut at one length", remedy="write the same number")
    if any(int(frames) and weight for frames, weight in data.dataset.conditioning_config.items()):
        given = {f"{section}.dataset.conditioning_config": data.dataset.conditioning_config}
        raise WrongValueError(given, why="this network takes no clean frames", remedy="leave it empty: {}")


FAMILY = CogVideoXTask
