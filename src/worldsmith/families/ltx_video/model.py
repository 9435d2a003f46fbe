"""LTX-Video: diffusers' transformer, its video VAE and its text encoder in one component."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.families.diffusers_pipeline.flow_match import FlowMatchDefaults
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.families.ltx_video.encoders import SPATIAL_FACTOR, TEMPORAL_FACTOR, LTXTextEncoder, LTXVideoVAE
from worldsmith.families.ltx_video.network import NetworkConfig
from worldsmith.models.video_model import Mode, Sampling, VideoSampler
from worldsmith.models.weights.shapes import Shapes

if TYPE_CHECKING:
    from torch import Tensor

FPS = 25.0
"""Frames per second where a sample does not state any."""


@dataclass(frozen=True, slots=True)
class LTXVideoDefaults(FlowMatchDefaults):
    """The released values."""

    steps: int = 50
    guidance: float = 3.0
    base_shift: float = 0.95
    max_shift: float = 2.05
    base_image_seq_len: int = 1024
    shift_terminal: float | None = 0.1


class LTXVideoGenerator(PipelineModel):
    """A transformer over the tokens of a video, with cross-attention to the text.

    Positions are in seconds and pixels, so that the network is told the frame rate of each video.
    """

    network_class = "LTXVideoTransformer3DModel"
    text_channels = "caption_channels"
    defaults_class = LTXVideoDefaults

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "ltx_video"
        makes: ClassVar[str] = "videos"
        modes: ClassVar[tuple[Mode, ...]] = ("text2video", "text2image")

        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Sizes of the network."""
        tokenizer: LTXVideoVAE.Config = field(default_factory=LTXVideoVAE.Config)
        """The video VAE."""
        text_encoder: LTXTextEncoder.Config = field(default_factory=LTXTextEncoder.Config)
        """The text encoder."""

        @property
        def latent_grid(self) -> tuple[int, int, int]:
            """As in `LatentGrid`."""
            return TEMPORAL_FACTOR, SPATIAL_FACTOR, 1

        def shapes(self) -> Shapes:
            return self.network.shapes()

    config: Config
    defaults: LTXVideoDefaults

    def sampler(self, sampling: Sampling) -> VideoSampler:
        from worldsmith.families.diffusers_pipeline.sampler import FlowMatchSampler

        return FlowMatchSampler(self, sampling)

    def predict(self, noisy: Tensor, timesteps: Tensor, text: Tensor, **beside: Any) -> Tensor:
        """`fps`: frames per second of each video, [n]. Rows of `text` that are zero are masked out."""
        import torch

        grid = noisy.shape[2:]
        fps = torch.tensor([rate or FPS for rate in beside["fps"]], device=noisy.device).view(-1, 1, 1, 1, 1)
        velocity: Tensor = self.network(
            hidden_states=noisy.flatten(2).transpose(1, 2).to(self.dtype),
            encoder_hidden_states=text.to(self.dtype),
            timestep=timesteps,
            encoder_attention_mask=text.any(dim=-1),
            num_frames=grid[0],
            height=grid[1],
            width=grid[2],
            rope_interpolation_scale=(TEMPORAL_FACTOR / fps, SPATIAL_FACTOR, SPATIAL_FACTOR),
            return_dict=False,
        )[0]
        return velocity.transpose(1, 2).unflatten(2, grid)
