"""LTX-Video: the network's sizes, its video VAE, its text encoder, and the model that combines them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, LayerCount
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.families.diffusers_pipeline.sampling import FlowMatchDefaults, FlowMatchSampler
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.models.model_files import SubstituteComponent
from worldsmith.models.video_model import Mode, Sampling, VideoSampler
from worldsmith.models.video_vae.posterior import PosteriorVAE
from worldsmith.models.video_vae.vae_folder import vae_substitute
from worldsmith.models.weights.shapes import Shapes, linear, norm, repeat_shapes

if TYPE_CHECKING:
    from torch import Tensor

FPS = 25.0
"""Frame rate (fps) if a sample does not state one."""
TIME_CHANNELS = 256
"""Channels of the sinusoidal timestep embedding."""
TEMPORAL_FACTOR, SPATIAL_FACTOR = 8, 32


class NetworkConfig(Config):
    """Sizes of the LTX-Video network; the defaults are those of LTX-Video 2B."""

    in_channels: Count = 128
    """Channels of a latent; a token is one latent."""
    out_channels: Count = 128
    """Number of output channels: the channels of a latent."""
    num_attention_heads: Count = 32
    """Number of attention heads of a block."""
    attention_head_dim: Count = 64
    """Channels per attention head."""
    cross_attention_dim: Count = 2048
    """Channels of the projected text hidden states: num_attention_heads × attention_head_dim."""
    num_layers: LayerCount = 28
    """Number of transformer blocks."""
    caption_channels: Count = 4096
    """Channels of the text encoder's output."""

    @property
    def inner_dim(self) -> int:
        """Channels of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    def check(self) -> None:
        """Raises WrongValueError if fields of this config contradict each other."""
        if self.in_channels != self.out_channels:
            raise wrong(self, "in_channels", "out_channels", why="the network predicts the velocity of a latent")
        if self.cross_attention_dim != self.inner_dim:
            why = f"the text is projected to the channels of all heads together, {self.inner_dim}"
            raise wrong(self, "cross_attention_dim", why=why, remedy=f"write {self.inner_dim}")

    def shapes(self) -> Shapes:
        """Returns the shape of every parameter by name, without building the network."""
        d, block = self.inner_dim, Shapes()
        for attention in ("attn1", "attn2"):
            block |= norm(f"{attention}.norm_q", d) | norm(f"{attention}.norm_k", d)
            for layer in ("to_q", "to_k", "to_v", "to_out.0"):
                block |= linear(f"{attention}.{layer}", d, d)
        block |= linear("ff.net.0.proj", d, 4 * d) | linear("ff.net.2", 4 * d, d) | {"scale_shift_table": (6, d)}
        shapes = linear("proj_in", self.in_channels, d) | {"scale_shift_table": (2, d)}
        shapes |= linear("time_embed.emb.timestep_embedder.linear_1", TIME_CHANNELS, d)
        shapes |= linear("time_embed.emb.timestep_embedder.linear_2", d, d) | linear("time_embed.linear", d, 6 * d)
        shapes |= linear("caption_projection.linear_1", self.caption_channels, d)
        shapes |= linear("caption_projection.linear_2", d, d)
        shapes |= repeat_shapes("transformer_blocks", self.num_layers, block)
        return shapes | linear("proj_out", d, self.out_channels)


class LTXVideoVAE(PosteriorVAE):
    """VAE of LTX-Video (`AutoencoderKLLTXVideo`): encodes 8k+1 frames to k+1 latent frames, and 32x32 px to one latent.

    Latents are normalized per channel. A decoder that is conditioned on a timestep gets timestep 0 and latents without
    added noise, which is the default of diffusers' pipeline.
    """

    recipe = "ltx-video-moments-1"

    class Config(PosteriorVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKLLTXVideo"

        def substitute(self) -> SubstituteComponent:
            """Returns the substitute (config without weights) that `worldsmith plan` uses if VAE files are missing."""
            return vae_substitute("LTX-Video", {"_class_name": self.class_name})

    statistics: tuple[Tensor, Tensor]
    """Mean and standard deviation of each latent channel; kept when the VAE weights are freed."""

    def load(self) -> Any:
        model = super().load()
        self.statistics = model.latents_mean.clone(), model.latents_std.clone()
        return model

    def normalize(self, raw: Tensor) -> Tensor:
        mean, std = (values.to(raw.device, raw.dtype).view(-1, 1, 1, 1) for values in self.statistics)
        return (raw - mean) * self.scaling_factor / std

    def denormalize(self, latents: Tensor) -> Tensor:
        mean, std = (values.to(latents.device, latents.dtype).view(-1, 1, 1, 1) for values in self.statistics)
        return latents * std / self.scaling_factor + mean

    def decode_raw(self, raw: Tensor) -> Tensor:
        timestep = raw.new_zeros(1) if self.settings["timestep_conditioning"] else None
        return self.model.decode(raw[None], timestep).sample[0]


class LTXTextEncoder(T5TextEncoder):
    """T5 text encoder that attends to padding; hidden states of padding are set to 0, which the network masks."""

    class Config(T5TextEncoder.Config):
        max_length: Count = 128
        """Number of tokens of every caption, including the end token and padding."""
        dropped_captions: Literal["zeros", "encoded"] = "encoded"
        """Embedding of captions that are dropped for classifier-free guidance: zeros, or that of the empty caption."""

    def encode(self, sample: Sequence[int]) -> Tensor:
        states = super().encode(sample)
        states[self.text_length(sample) or 1 :] = 0
        return states

    @cached_property
    def fingerprint(self) -> str:
        return f"{super().fingerprint} zeros behind the text"


@dataclass(frozen=True, slots=True)
class LTXVideoDefaults(FlowMatchDefaults):
    """Default generation settings of LTX-Video; the default values are those of the released weights."""

    steps: int = 50
    guidance: float = 3.0
    base_shift: float = 0.95
    max_shift: float = 2.05
    base_image_seq_len: int = 1024
    shift_terminal: float | None = 0.1


class LTXVideoGenerator(PipelineModel):
    """LTX-Video: a transformer over the tokens of a video, with cross-attention to the text.

    Position embeddings depend on seconds and pixels, so the network gets the frame rate of each video.
    """

    network_class = "LTXVideoTransformer3DModel"
    text_channels = "caption_channels"
    defaults_class = LTXVideoDefaults

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "ltx_video"
        modes: ClassVar[tuple[Mode, ...]] = ("text2video", "text2image")

        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Network sizes."""
        tokenizer: LTXVideoVAE.Config = field(default_factory=LTXVideoVAE.Config)
        """The video VAE."""
        text_encoder: LTXTextEncoder.Config = field(default_factory=LTXTextEncoder.Config)
        """The text encoder."""

        @property
        def latent_grid(self) -> tuple[int, int, int]:
            """Compression and patch size: frames per latent frame, pixels per latent, latents per token (each side)."""
            return TEMPORAL_FACTOR, SPATIAL_FACTOR, 1

    config: Config
    defaults: LTXVideoDefaults

    def sampler(self, sampling: Sampling) -> VideoSampler:
        return FlowMatchSampler(self, sampling)

    def predict(self, noisy: Tensor, timesteps: Tensor, text: Tensor, **extra_inputs: Any) -> Tensor:
        """Runs the network on videos of one shape.

        Args:
            noisy: Noisy latents [n, C, t, h, w].
            timesteps: Timesteps [n], 0 to 1000.
            text: Hidden states of the captions [n, text tokens, d]; rows of zeros are masked.
            extra_inputs: Required `fps`: frames per second of each sample, a list or a tensor [n]; None or 0: 25.

        Returns:
            Velocities [n, C, t, h, w].
        """
        import torch

        grid, rates = noisy.shape[2:], extra_inputs["fps"]
        if not isinstance(rates, torch.Tensor):
            rates = torch.tensor([rate or FPS for rate in rates], device=noisy.device)
        fps = rates.view(-1, 1, 1, 1, 1)
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
