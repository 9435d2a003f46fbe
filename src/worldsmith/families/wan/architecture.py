"""Sizes of Wan transformers, named as in diffusers' `WanTransformer3DModel`."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, LayerCount, PositiveFactor, Range
from worldsmith.models.weights.shapes import Shapes, linear, norm, repeat_shapes

MASK = 4
"""Number of mask channels, which mark the conditioning video frames of each latent frame."""


class NetworkConfig(Config):
    """Sizes of the Wan network; the defaults are those of Wan 2.1 14B and of a Wan 2.2 A14B expert, text-to-video."""

    patch_size: list[Count] = field(default_factory=lambda: [1, 2, 2])
    """Patch size: latent frames, rows and columns per token; the first is 1, the others are equal."""
    num_attention_heads: Count = 40
    """Number of attention heads of a block."""
    attention_head_dim: Annotated[int, Range(ge=6)] = 128
    """Channels per attention head."""
    in_channels: Count = 16
    """Number of input channels: the channels C of a latent, or 2C + 4 with image conditioning and its mask."""
    out_channels: Count = 16
    """Number of output channels: the channels of a latent."""
    text_dim: Count = 4096
    """Channels of the text encoder's output."""
    freq_dim: Count = 256
    """Channels of the sinusoidal timestep embedding."""
    ffn_dim: Count = 13824
    """Inner channels of a feed-forward layer."""
    num_layers: LayerCount = 40
    """Number of transformer blocks."""
    cross_attn_norm: bool = True
    """Whether the norm before cross-attention has weights and biases."""
    qk_norm: str = "rms_norm_across_heads"
    """Norm of queries and keys; only the default is supported."""
    eps: PositiveFactor = 1e-6
    """Epsilon of the norms."""
    image_dim: Count | None = None
    """Channels of the image encoder's hidden states that the network uses; None: no image encoder."""
    added_kv_proj_dim: Count | None = None
    """Channels of the projected image states, from which keys and values are computed; None: no image encoder."""
    rope_max_seq_len: Count = 1024
    """Number of positions in the rotary table of each axis."""
    pos_embed_seq_len: Count | None = None
    """Number of rows of the position table for a first and a last image; only None (no table) is supported."""

    @property
    def inner_dim(self) -> int:
        """Channels of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def takes_image(self) -> bool:
        """Whether the latents of an image, and their mask, are concatenated to the noisy latents."""
        return self.in_channels != self.out_channels

    def check(self) -> None:
        """Raises WrongValueError if fields of this config contradict each other."""
        if len(self.patch_size) != 3 or self.patch_size[0] != 1 or self.patch_size[1] != self.patch_size[2]:
            raise wrong(self, "patch_size", allowed="[1, n, n]")
        if self.takes_image and self.in_channels != 2 * self.out_channels + MASK:
            why = "image latents have as many channels as the video latents, and their mask has 4"
            raise wrong(
                self, "in_channels", "out_channels", why=why, remedy="write out_channels, or 2 * out_channels + 4"
            )
        reads = (self.image_dim is not None, self.added_kv_proj_dim is not None)
        if reads[0] != reads[1] or (any(reads) and self.added_kv_proj_dim != self.inner_dim):
            why = f"hidden states of the image encoder are projected to the network's width, {self.inner_dim}"
            raise wrong(self, "image_dim", "added_kv_proj_dim", why=why, remedy="set both, or none of them")
        if self.pos_embed_seq_len is not None:
            why = "networks that are conditioned on a first and a last image are not supported"
            raise wrong(self, "pos_embed_seq_len", why=why, remedy="omit it")
        if self.attention_head_dim % 2:
            raise wrong(self, "attention_head_dim", allowed="an even number")

    def shapes(self) -> Shapes:
        """Returns the shape of every parameter by name, without building the network."""
        d, states = self.inner_dim, self.image_dim
        shapes: Shapes = {"scale_shift_table": (1, 2, d)}
        shapes |= {"patch_embedding.weight": (d, self.in_channels, *self.patch_size), "patch_embedding.bias": (d,)}
        inner = linear("time_embedder.linear_1", self.freq_dim, d) | linear("time_embedder.linear_2", d, d)
        inner |= linear("time_proj", d, 6 * d)
        inner |= linear("text_embedder.linear_1", self.text_dim, d) | linear("text_embedder.linear_2", d, d)
        if states is not None:
            inner |= norm("image_embedder.norm1", states, bias=True) | norm("image_embedder.norm2", d, bias=True)
            inner |= linear("image_embedder.ff.net.0.proj", states, states)
            inner |= linear("image_embedder.ff.net.2", states, d)
        shapes |= {f"condition_embedder.{name}": shape for name, shape in inner.items()}
        shapes |= repeat_shapes("blocks", self.num_layers, self._block())
        return shapes | linear("proj_out", d, self.out_channels * math.prod(self.patch_size))

    def _block(self) -> Shapes:
        d = self.inner_dim
        shapes: Shapes = {"scale_shift_table": (1, 6, d)}
        for attention in ("attn1", "attn2"):
            for layer in ("to_q", "to_k", "to_v", "to_out.0"):
                shapes |= linear(f"{attention}.{layer}", d, d)
            shapes |= norm(f"{attention}.norm_q", d) | norm(f"{attention}.norm_k", d)
        if self.added_kv_proj_dim is not None:
            for layer in ("add_k_proj", "add_v_proj"):
                shapes |= linear(f"attn2.{layer}", self.added_kv_proj_dim, d)
            shapes |= norm("attn2.norm_added_k", d)
        if self.cross_attn_norm:
            shapes |= norm("norm2", d, bias=True)
        return shapes | linear("ffn.net.0.proj", d, self.ffn_dim) | linear("ffn.net.2", self.ffn_dim, d)


def wan21_1b() -> NetworkConfig:
    """Returns the network config of Wan 2.1 1.3B (1.42 B parameters)."""
    return NetworkConfig(num_attention_heads=12, ffn_dim=8960, num_layers=30)


def wan_14b() -> NetworkConfig:
    """Returns the network config of Wan 2.1 14B, or of a Wan 2.2 A14B expert, text-to-video (14.3 B parameters)."""
    return NetworkConfig()


def wan21_i2v_14b() -> NetworkConfig:
    """Returns the network config of Wan 2.1 14B, image-to-video (16.4 B parameters)."""
    return NetworkConfig(in_channels=36, image_dim=1280, added_kv_proj_dim=5120)


def wan22_i2v_14b() -> NetworkConfig:
    """Returns the network config of a Wan 2.2 A14B expert, image-to-video."""
    return NetworkConfig(in_channels=36)


def wan22_5b() -> NetworkConfig:
    """Returns the network config of Wan 2.2 5B, text- and image-to-video (5.0 B parameters)."""
    return NetworkConfig(num_attention_heads=24, ffn_dim=14336, num_layers=30, in_channels=48, out_channels=48)


def tiny() -> NetworkConfig:
    """Returns a tiny network config for clips of 64 px on a CPU."""
    return NetworkConfig(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=32, freq_dim=16,
        ffn_dim=48, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
