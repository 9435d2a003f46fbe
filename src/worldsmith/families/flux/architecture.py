"""Sizes of FLUX.1 transformers, named as in diffusers' `FluxTransformer2DModel`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, LayerCount, Range
from worldsmith.models.weights.shapes import Shapes, linear, norm, repeat_shapes

PACKED = 4
"""Latents per token: a patch of 2x2 latents, concatenated along the channels."""
TIME_CHANNELS = 256
"""Channels of the sinusoidal embedding of timestep and guidance."""


class NetworkConfig(Config):
    """Sizes of the FLUX.1 network; the defaults are those of FLUX.1-dev."""

    in_channels: Annotated[int, Range(ge=PACKED)] = 64
    """Channels of a token, which consists of 2x2 latents."""
    num_layers: LayerCount = 19
    """Number of double-stream blocks, which have separate weights for text and image tokens."""
    num_single_layers: LayerCount = 38
    """Number of single-stream blocks after the double-stream blocks; text and image tokens share their weights."""
    attention_head_dim: Annotated[int, Range(ge=2)] = 128
    """Channels per attention head."""
    num_attention_heads: Count = 24
    """Number of attention heads of a block."""
    joint_attention_dim: Count = 4096
    """Channels of the T5 encoder's output."""
    pooled_projection_dim: Count = 768
    """Channels of the CLIP encoder's output."""
    guidance_embeds: bool = True
    """Whether the guidance scale is an input of the network: true for dev, false for schnell."""
    axes_dims_rope: list[int] = field(default_factory=lambda: [16, 56, 56])
    """Number of rotary channels per head for token index (always 0), row and column."""

    @property
    def inner_dim(self) -> int:
        """Channels of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    def check(self) -> None:
        """Raises WrongValueError if fields of this config contradict each other."""
        if self.in_channels % PACKED:
            raise wrong(self, "in_channels", allowed=f"a multiple of {PACKED}", why="a token has 2x2 latents")
        axes = self.axes_dims_rope
        if len(axes) != 3 or sum(axes) != self.attention_head_dim or any(axis < 2 or axis % 2 for axis in axes):
            why = "the channels of a head are divided among three axes, in pairs"
            raise wrong(self, "axes_dims_rope", "attention_head_dim", why=why)
        if self.pooled_projection_dim > self.joint_attention_dim:
            why = "the pooled CLIP embedding is stored as one more row of T5's hidden states and must not be wider"
            raise wrong(self, "pooled_projection_dim", "joint_attention_dim", why=why)

    def shapes(self) -> Shapes:
        """Returns the shape of every parameter by name, without building the network."""
        d, shapes = self.inner_dim, Shapes()
        embedders = {"timestep": TIME_CHANNELS, "guidance": TIME_CHANNELS, "text": self.pooled_projection_dim}
        if not self.guidance_embeds:
            del embedders["guidance"]
        for name, channels in embedders.items():
            path = f"time_text_embed.{name}_embedder"
            shapes |= linear(f"{path}.linear_1", channels, d) | linear(f"{path}.linear_2", d, d)
        shapes |= linear("context_embedder", self.joint_attention_dim, d) | linear("x_embedder", self.in_channels, d)
        shapes |= repeat_shapes("transformer_blocks", self.num_layers, self._double())
        shapes |= repeat_shapes("single_transformer_blocks", self.num_single_layers, self._single())
        return shapes | linear("norm_out.linear", d, 2 * d) | linear("proj_out", d, self.in_channels)

    def _double(self) -> Shapes:
        d, head, shapes = self.inner_dim, self.attention_head_dim, Shapes()
        for ending in ("", "_context"):
            shapes |= linear(f"norm1{ending}.linear", d, 6 * d)
            shapes |= linear(f"ff{ending}.net.0.proj", d, 4 * d) | linear(f"ff{ending}.net.2", 4 * d, d)
        for layer in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            shapes |= linear(f"attn.{layer}", d, d)
        for layer in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            shapes |= norm(f"attn.{layer}", head)
        return shapes

    def _single(self) -> Shapes:
        d, head = self.inner_dim, self.attention_head_dim
        shapes = linear("norm.linear", d, 3 * d) | linear("proj_mlp", d, 4 * d) | linear("proj_out", 5 * d, d)
        shapes |= norm("attn.norm_q", head) | norm("attn.norm_k", head)
        for layer in ("to_q", "to_k", "to_v"):
            shapes |= linear(f"attn.{layer}", d, d)
        return shapes


def flux_dev() -> NetworkConfig:
    """Returns the network config of FLUX.1-dev (11.9 B parameters)."""
    return NetworkConfig()


def flux_schnell() -> NetworkConfig:
    """Returns the network config of FLUX.1-schnell: that of FLUX.1-dev without the guidance embedding."""
    return NetworkConfig(guidance_embeds=False)


def tiny() -> NetworkConfig:
    """Returns a tiny network config (81 thousand parameters) for a CPU and the package's tiny VAE and encoders."""
    return NetworkConfig(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=64, pooled_projection_dim=64, axes_dims_rope=[4, 6, 6],
    )  # fmt: skip
