"""Sizes of LTX-Video transformers, by the names of diffusers' `LTXVideoTransformer3DModel`."""

from __future__ import annotations

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, LayerCount
from worldsmith.models.weights.shapes import Shapes, linear, norm, repeated

TIME_CHANNELS = 256
"""Channels of the sine embedding of a timestep."""


class NetworkConfig(Config):
    """The defaults are those of LTX-Video 2B."""

    in_channels: Count = 128
    """Channels of a latent; a token is one latent cell."""
    out_channels: Count = 128
    """Channels of the prediction: those of a latent."""
    num_attention_heads: Count = 32
    """Attention heads of a block."""
    attention_head_dim: Count = 64
    """Channels of a head."""
    cross_attention_dim: Count = 2048
    """Channels of the projected text: those of all heads."""
    num_layers: LayerCount = 28
    """Transformer blocks."""
    caption_channels: Count = 4096
    """Channels of the text encoder."""

    @property
    def inner_dim(self) -> int:
        """Channels of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    def check(self) -> None:
        """Raises WrongValueError for sizes that do not fit together."""
        if self.in_channels != self.out_channels:
            raise wrong(self, "in_channels", "out_channels", why="the network predicts the velocity of a latent")
        if self.cross_attention_dim != self.inner_dim:
            why = f"the text is projected to the channels of all heads, {self.inner_dim}"
            raise wrong(self, "cross_attention_dim", why=why, remedy=f"write {self.inner_dim}")

    def shapes(self) -> Shapes:
        """Names and shapes of the parameters, by arithmetic."""
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
        shapes |= repeated("transformer_blocks", self.num_layers, block)
        return shapes | linear("proj_out", d, self.out_channels)
