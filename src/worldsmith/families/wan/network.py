"""Network of Wan 2.2 5B: diffusers' transformer with a timestep per latent frame, not one per token.

All tokens of a latent frame have the same timestep. From timesteps per token, a block of diffusers computes shifts,
scales and gates of all tokens, float32 [n, tokens, 6, d]. The modules here compute them once per frame, and broadcast
them. Parameters and results are those of diffusers.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from torch import Tensor


class FrameTimestepBlock(WanTransformerBlock):
    """Block of diffusers whose tokens consist of consecutive frames of equal size, each with its own timestep."""

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, rotary_emb: Any) -> Tensor:
        """Runs the block.

        Args:
            hidden_states: Video tokens, frame after frame, [n, tokens, d].
            encoder_hidden_states: Text states [n, text tokens, d].
            temb: Projected timestep embeddings of the frames [n, frames, 6, d].
            rotary_emb: Tables of the rotary embedding.

        Returns:
            Video tokens [n, tokens, d].
        """
        x = hidden_states
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (self.scale_shift_table + temb.float()).unbind(2)
        normed = modulate(self.norm1(x.float()), scale, shift).type_as(x)
        x = (x.float() + per_frame(self.attn1(normed, None, None, rotary_emb), gate)).type_as(x)
        x = x + self.attn2(self.norm2(x.float()).type_as(x), encoder_hidden_states, None, None)
        normed = modulate(self.norm3(x.float()), mlp_scale, mlp_shift).type_as(x)
        return (x.float() + per_frame(self.ffn(normed).float(), mlp_gate)).type_as(x)


class FrameTimestepTransformer(WanTransformer3DModel):
    """`WanTransformer3DModel` of diffusers that also accepts a timestep per latent frame."""

    blocks: Any
    condition_embedder: Any
    config: Any
    norm_out: Any
    patch_embedding: Any
    proj_out: Any
    rope: Any
    scale_shift_table: Tensor

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        for block in self.blocks:
            block.__class__ = FrameTimestepBlock

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Runs the network.

        Args:
            hidden_states: Noisy latents [n, C, t, h, w].
            timestep: Timesteps, 0 to 1000: of samples [n], of latent frames [n, t], or of tokens [n, tokens].
            encoder_hidden_states: Text states [n, text tokens, text_dim].
            encoder_hidden_states_image: States of the image encoder [n, image tokens, image_dim]; None: no image.
            return_dict: Whether to return an output object of diffusers.

        Returns:
            Velocities [n, C, t, h, w], in an output object or in a tuple.
        """
        rotary = self.rope(hidden_states)
        patches = self.patch_embedding(hidden_states)
        x = patches.flatten(2).transpose(1, 2).contiguous()
        timestep = timestep.view(len(x), -1)
        temb, modulation, text, image = self.condition_embedder(
            timestep.flatten(), encoder_hidden_states, encoder_hidden_states_image, timestep_seq_len=timestep.shape[1]
        )
        states = text if image is None else torch.cat([image, text], dim=1)
        modulation = modulation.unflatten(2, (6, -1))
        for block in self.blocks:
            x = block(x, states, modulation, rotary)
        shift, scale = (self.scale_shift_table + temb[:, :, None]).unbind(2)
        x = self.proj_out(modulate(self.norm_out(x.float()), scale, shift).type_as(x))
        # [n, t, rows, columns, patch t, patch h, patch w, C]
        x = x.unflatten(2, (*self.config.patch_size, -1)).unflatten(1, patches.shape[2:])
        velocities = x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return Transformer2DModelOutput(sample=velocities) if return_dict else (velocities,)


def per_frame(tokens: Tensor, factors: Tensor) -> Tensor:
    """Multiplies the tokens [n, tokens, d] of each frame by its row of `factors` [n, frames, d]."""
    return (tokens.unflatten(1, (factors.shape[1], -1)) * factors[:, :, None]).flatten(1, 2)


def modulate(tokens: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Returns tokens * (1 + scale) + shift for tokens [n, tokens, d], and for scales and shifts [n, frames, d]."""
    frames = tokens.unflatten(1, (scale.shape[1], -1))
    return (frames * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)
