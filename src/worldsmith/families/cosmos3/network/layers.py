"""The decoder layer of the Mixture-of-Transformers: two complete parameter sets that meet only inside attention.

Text tokens pass through the understanding set (plain names), latent tokens through the generation set (`_moe_gen`).
Text never attends to latents, so its keys and values can be kept while latents change: `read` returns them, `write`
uses them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from worldsmith.families.cosmos3.attention.packed import latent_attention, packed_attention
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.rope import Rotary, apply_rotary
from worldsmith.families.cosmos3.network.sequence import Geometry

TextMemory = tuple[Tensor, Tensor]
"""Keys (rotated, as used by the generation tower) and values of a layer's text tokens, each [N_und, kv_heads, d]."""
HALVES = ("read", "remember", "write")
"""Methods of a layer that full activation checkpointing recomputes separately."""
PIECES = ("attend_text", "text_out", "remember", "attend_latents", "latent_out")
"""Methods of a layer that selective activation checkpointing recomputes separately. The attention outputs between them
are saved in any case, and the compiled ones among them can save matmuls."""
TOKENWISE = ("text_in", "text_out", "latent_in", "latent_out")
"""Methods of a layer that are compiled: all but attention, which uses its own kernel."""


class GatedMLP(nn.Module):
    """Gated MLP of Qwen-style backbones: down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SquaredReluMLP(nn.Module):
    """MLP of Edge-style backbones: down(relu(up(x))²)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(x)).square())


class MoTAttention(nn.Module):
    """Projections and query/key norms of grouped-query attention, with separate weights for text and for latents.

    Text attends to earlier text. Latents attend to the text and latents of their sample.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        q_size, kv_size = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, q_size, bias=False)
        self.k_proj = nn.Linear(hidden, kv_size, bias=False)
        self.v_proj = nn.Linear(hidden, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, hidden, bias=False)
        self.q_proj_moe_gen = nn.Linear(hidden, q_size, bias=False)
        self.k_proj_moe_gen = nn.Linear(hidden, kv_size, bias=False)
        self.v_proj_moe_gen = nn.Linear(hidden, kv_size, bias=False)
        self.o_proj_moe_gen = nn.Linear(q_size, hidden, bias=False)
        self.q_norm = head_norm(config) if config.qk_norm_for_text else nn.Identity()
        self.k_norm = head_norm(config) if config.qk_norm_for_text else nn.Identity()
        self.q_norm_moe_gen = head_norm(config)
        self.k_norm_moe_gen = head_norm(config)
        self.k_norm_und_for_gen = head_norm(config) if config.use_und_k_norm_for_gen else None

    def text_queries(self, und: Tensor, rotary: Rotary) -> Tensor:
        """Projects normed text [N_und, hidden] to rotated queries [N_und, heads, d]."""
        return apply_rotary(self.q_norm(self.heads(self.q_proj(und))), rotary)

    def text_keys(self, und: Tensor, rotary: Rotary) -> tuple[Tensor, ...]:
        """Projects normed text [N_und, hidden] to rotated keys and values, each [N_und, kv_heads, d].

        Returns:
            (keys, values), or (keys, values, keys for latents) if the config has `use_und_k_norm_for_gen`: then
            latents attend to text keys with a norm of the generation tower.
        """
        k, v = self.k_norm(self.heads(self.k_proj(und))), self.heads(self.v_proj(und))
        if self.k_norm_und_for_gen is None:
            return apply_rotary(k, rotary), v
        return apply_rotary(k, rotary), v, apply_rotary(self.k_norm_und_for_gen(k), rotary)

    def latent_heads(self, gen: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Projects normed latents [N_gen, hidden] to rotated queries, rotated keys, and values.

        Queries are [N_gen, heads, d], keys and values [N_gen, kv_heads, d].
        """
        q = apply_rotary(self.q_norm_moe_gen(self.heads(self.q_proj_moe_gen(gen))), rotary)
        k = apply_rotary(self.k_norm_moe_gen(self.heads(self.k_proj_moe_gen(gen))), rotary)
        return q, k, self.heads(self.v_proj_moe_gen(gen))

    def heads(self, x: Tensor) -> Tensor:
        """Reshapes [N, heads * d] to [N, heads, d]."""
        return x.view(len(x), -1, self.head_dim)


class MoTDecoderLayer(nn.Module):
    """Pre-norm decoder layer with separate weights for text (understanding) and for latents (generation).

    FSDP shards both sets of weights as one module.

    Args:
        config: Config of the network.
        pattern: Index of the layer's attention pattern in `AttentionModes.patterns` of the network.
    """

    def __init__(self, config: NetworkConfig, pattern: int = 0) -> None:
        super().__init__()
        self.pattern = pattern
        mlp = GatedMLP if config.hidden_act == "silu" else SquaredReluMLP
        self.self_attn = MoTAttention(config)
        self.mlp = mlp(config.hidden_size, config.intermediate_size)
        self.mlp_moe_gen = mlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = stream_norm(config)
        self.input_layernorm_moe_gen = stream_norm(config)
        self.post_attention_layernorm = stream_norm(config)
        self.post_attention_layernorm_moe_gen = stream_norm(config)

    def forward(
        self,
        und: Tensor | None,
        gen: Tensor,
        geometry: Geometry,
        memory: TextMemory | None = None,
        *,
        last: bool = False,
    ) -> tuple[Tensor | None, Tensor]:
        """Runs the layer on both token streams.

        Args:
            und: Text stream [N_und, hidden]; None: `memory` is used.
            gen: Latent stream [N_gen, hidden].
            geometry: Positions and attention plans of the pack.
            memory: (keys, values) of the text from an earlier `read` of this layer; used only if `und` is None.
            last: Whether this is the last layer of the network, whose text output is not used.

        Returns:
            The next text stream (None without `und`, and after the last layer), and the next latent stream.

        Raises:
            ValueError: If neither `und` nor `memory` is given.
        """
        if und is not None and last:
            memory = self.remember(und, geometry)
            und = None
        elif und is not None:
            und, memory = self.read(und, geometry)
        if memory is None:
            raise ValueError("a decoder layer requires either the text stream `und` or text keys and values `memory`")
        return und, self.write(gen, memory, geometry)

    def read(self, und: Tensor, geometry: Geometry) -> tuple[Tensor, TextMemory]:
        """Runs the text half of the layer: causal attention and MLP with the weights of the understanding tower.

        Args:
            und: Text stream [N_und, hidden].
            geometry: Positions and attention plans of the pack.

        Returns:
            The next text stream, and the (keys, values) of the text to which latents attend.
        """
        out, memory = self.attend_text(und, geometry)
        return self.text_out(und, out), memory

    def attend_text(self, und: Tensor, geometry: Geometry) -> tuple[Tensor, TextMemory]:
        """Computes the attention output [N_und, heads, d] of `read`, and the (keys, values) that it returns."""
        q, k, v, *seen = geometry.und_share.to_heads(*self.text_in(und, geometry.und_rotary))
        out = geometry.und_share.to_tokens(packed_attention(q, k, v, geometry.und_segments))
        return out, (seen[0] if seen else k, v)

    def read_text(self, und: Tensor, geometry: Geometry) -> tuple[Tensor, TextMemory]:
        """Runs the text half of the layer (as `read`) outside of `forward`, to compute the text once for many steps.

        FSDP all-gathers the layer's weights for calls of this method, but not for calls of `read`.

        Args:
            und: Hidden states of the text tokens (text stream) [N_und, hidden].
            geometry: Rotary positions and attention plans of the pack.

        Returns:
            The text stream [N_und, hidden] after this layer, and the (keys, values) of the text, each
            [N_und, kv_heads, d], to which the latents attend in this layer.
        """
        return self.read(und, geometry)

    def remember(self, und: Tensor, geometry: Geometry) -> TextMemory:
        """Returns the (keys, values) of the text stream `und` for latents, without computing the next text stream."""
        keys = self.self_attn.text_keys(self.input_layernorm(und), geometry.und_rotary)
        k, v, *seen = geometry.und_share.to_heads(*keys)
        return seen[0] if seen else k, v

    def write(self, gen: Tensor, memory: TextMemory, geometry: Geometry) -> Tensor:
        """Runs the latent half of the layer: attention and MLP with the weights of the generation tower.

        Args:
            gen: Latent stream [N_gen, hidden].
            memory: (keys, values) of the text in this layer, from `read` or `remember`.
            geometry: Positions and attention plans of the pack.

        Returns:
            The next latent stream [N_gen, hidden].
        """
        return self.latent_out(gen, self.attend_latents(gen, memory, geometry))

    def attend_latents(self, gen: Tensor, memory: TextMemory, geometry: Geometry) -> Tensor:
        """Computes the attention output [N_gen, heads, d] of `write`."""
        q, k, v = geometry.gen_share.to_heads(*self.latent_in(gen, geometry.gen_rotary))
        out = latent_attention(q, k, v, *memory, geometry.gen_plans[self.pattern])
        return geometry.gen_share.to_tokens(out)

    # Computation per token before and after attention: the compiled methods.

    def text_in(self, und: Tensor, rotary: Rotary) -> tuple[Tensor, ...]:
        """Projects the text stream [N_und, hidden] to (queries, keys, values) or (queries, keys, values, latent keys).

        Latent keys are text keys to which latents attend; only networks with `use_und_k_norm_for_gen` have them.
        Queries are [N_und, heads, d], keys and values [N_und, kv_heads, d].
        """
        normed = self.input_layernorm(und)
        return self.self_attn.text_queries(normed, rotary), *self.self_attn.text_keys(normed, rotary)

    def text_out(self, und: Tensor, attended: Tensor) -> Tensor:
        """Returns the next text stream [N_und, hidden], from the attention output `attended` [N_und, heads, d]."""
        und = und + self.self_attn.o_proj(attended.flatten(1))
        return und + self.mlp(self.post_attention_layernorm(und))

    def latent_in(self, gen: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Projects the latent stream [N_gen, hidden] to (queries, keys, values).

        Queries are [N_gen, heads, d], keys and values [N_gen, kv_heads, d].
        """
        return self.self_attn.latent_heads(self.input_layernorm_moe_gen(gen), rotary)

    def latent_out(self, gen: Tensor, attended: Tensor) -> Tensor:
        """Returns the next latent stream [N_gen, hidden], from the attention output `attended` [N_gen, heads, d]."""
        gen = gen + self.self_attn.o_proj_moe_gen(attended.flatten(1))
        return gen + self.mlp_moe_gen(self.post_attention_layernorm_moe_gen(gen))


def stream_norm(config: NetworkConfig) -> RMSNorm:
    """Builds an RMSNorm over the hidden size; with `scale_in_fp32` if `hidden_act` is relu2 (Edge)."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=config.hidden_act == "relu2")


def head_norm(config: NetworkConfig) -> RMSNorm:
    """Builds an RMSNorm over the channels of a head; with `scale_in_fp32` if `hidden_act` is relu2 (Edge)."""
    return RMSNorm(config.head_dim, config.rms_norm_eps, scale_in_fp32=config.hidden_act == "relu2")


class RMSNorm(nn.Module):
    """RMSNorm over the last axis, x / rms(x) * weight, computed in float32.

    The result is cast to the input's dtype before the multiplication by `weight`; with `scale_in_fp32` (Edge) after it.
    """

    def __init__(self, size: int, eps: float, *, scale_in_fp32: bool) -> None:
        super().__init__()
        self.eps, self.scale_in_fp32 = eps, scale_in_fp32
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        shape = self.weight.shape
        if x.dtype == torch.float32 == self.weight.dtype:
            if x.device.type == "cpu":
                return CpuRMSNorm.apply(x, self.weight, self.eps)
            return F.rms_norm(x, shape, self.weight, self.eps)
        if self.scale_in_fp32:
            return F.rms_norm(x.float(), shape, self.weight.float(), self.eps).to(x.dtype)
        return F.rms_norm(x.float(), shape, None, self.eps).to(x.dtype) * self.weight.to(x.dtype)


class CpuRMSNorm(torch.autograd.Function):
    """`F.rms_norm` with a closed-form backward pass for the CPU, where torch has no fused backward pass.

    With n = x / rms(x), weight w and output gradient g: d weight = sum g n, dx = (g w - n mean(g w n)) / rms(x).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        weight_grad = (grad * normed).flatten(0, -2).sum(0)
        grad = grad * weight
        overlap = (grad * normed).mean(-1, keepdim=True)
        return grad.addcmul_(normed, overlap, value=-1).mul_(scale), weight_grad, None
