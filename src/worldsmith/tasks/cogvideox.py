"""CogVideoX learns v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worldsmith.config import WrongValueError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.models.cogvideox.generator import CogVideoXGenerator
from worldsmith.objectives.v_prediction import VPrediction
from worldsmith.tasks.pipeline_task import PipelineTask

DECODED_FRAMES = 8
"""Clips of 8k+1 frames alone come out of diffusers' decoder as long as they went in."""


@dataclass(frozen=True, slots=True)
class DecodableGrid(LatentGrid):
    def usable_frames(self, num_frames: int) -> int:
        return (num_frames - 1) // DECODED_FRAMES * DECODED_FRAMES + 1


class CogVideoXTask(PipelineTask):
    """Text to video."""

    objective_class = VPrediction

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        refuse_other_inputs(run.model.config)

    @property
    def grid(self) -> LatentGrid:
        return DecodableGrid(*self.model.config.latent_grid)


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


FAMILY = CogVideoXTask
