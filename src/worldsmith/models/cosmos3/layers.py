"""The decoder layer of the Mixture-of-Transformers: two complete parameter sets that meet only inside attention.

Text tokens pass through the understanding set (plain names), latent tokens through the generation set (`_moe_gen`).
Text never sees latents, so its keys and values can be kept while latents change: `read` gives them, `write` uses them.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from worldsmith.models.cosmos3.architecture import NetworkConfig
from worldsmith.models.cosmos3.attention import latent_attention, text_attention
from worldsmith.models.cosmos3.rms_norm import RMSNorm
from worldsmith.models.cosmos3.rope import apply_rotary
from worldsmith.models.cosmos3.sequence import Geometry

TextMemory = tuple[Tensor, Tensor]
"""Keys (rotated, as the generation tower sees them) and values of a layer's text tokens, each [N_und, kv_heads, d]."""


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), the Qwen-style MLP."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SquaredReluMLP(nn.Module):
    """down(relu(up(x))²), the Edge-style MLP."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(x)).square())


class MoTAttention(nn.Module):
    """Grouped-query attention of both towers: text over text (causal), latents over their text and themselves."""

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

    def read(self, und: Tensor, geometry: Geometry) -> tuple[Tensor, TextMemory]:
        """Text over text. und [N_und, hidden]; the attention output and what the latents will see of the text."""
        q, k, v = self.heads(self.q_proj(und)), self.heads(self.k_proj(und)), self.heads(self.v_proj(und))
        q, k = apply_rotary(self.q_norm(q), geometry.und_rotary), self.k_norm(k)
        rotated = apply_rotary(k, geometry.und_rotary)
        seen = rotated
        if self.k_norm_und_for_gen is not None:
            seen = apply_rotary(self.k_norm_und_for_gen(k), geometry.und_rotary)
        out = text_attention(q, rotated, v, geometry.und_segments)
        return self.o_proj(out.flatten(1)), (seen, v)

    def write(self, gen: Tensor, memory: TextMemory, geometry: Geometry) -> Tensor:
        """Latents over their text and themselves. gen [N_gen, hidden]; the attention output [N_gen, hidden]."""
        q = apply_rotary(self.q_norm_moe_gen(self.heads(self.q_proj_moe_gen(gen))), geometry.gen_rotary)
        k = apply_rotary(self.k_norm_moe_gen(self.heads(self.k_proj_moe_gen(gen))), geometry.gen_rotary)
        v = self.heads(self.v_proj_moe_gen(gen))
        out = latent_attention(q, k, v, *memory, geometry.gen_segments)
        return self.o_proj_moe_gen(out.flatten(1))

    def heads(self, x: Tensor) -> Tensor:
        """[N, heads * d] → [N, heads, d]."""
        return x.view(len(x), -1, self.head_dim)


class MoTDecoderLayer(nn.Module):
    """Pre-norm decoder layer with an understanding and a generation parameter set; one unit of sharding."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        mlp = GatedMLP if config.hidden_act == "silu" else SquaredReluMLP
        self.self_attn = MoTAttention(config)
        self.mlp = mlp(config.hidden_size, config.intermediate_size)
        self.mlp_moe_gen = mlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = stream_norm(config)
        self.input_layernorm_moe_gen = stream_norm(config)
        self.post_attention_layernorm = stream_norm(config)
        self.post_attention_layernorm_moe_gen = stream_norm(config)

    def forward(
        self, und: Tensor | None, gen: Tensor, geometry: Geometry, memory: TextMemory | None = None
    ) -> tuple[Tensor | None, Tensor]:
        """und [N_und, hidden], gen [N_gen, hidden] → the same. Without und, `memory` is what was read of it before."""
        if und is not None:
            und, memory = self.read(und, geometry)
        if memory is None:
            raise ValueError("a decoder layer needs either the text stream or the memory of a text that it read before")
        return und, self.write(gen, memory, geometry)

    def read(self, und: Tensor, geometry: Geometry) -> tuple[Tensor, TextMemory]:
        """The understanding half."""
        attended, memory = self.self_attn.read(self.input_layernorm(und), geometry)
        und = und + attended
        return und + self.mlp(self.post_attention_layernorm(und)), memory

    def write(self, gen: Tensor, memory: TextMemory, geometry: Geometry) -> Tensor:
        """The generation half."""
        gen = gen + self.self_attn.write(self.input_layernorm_moe_gen(gen), memory, geometry)
        return gen + self.mlp_moe_gen(self.post_attention_layernorm_moe_gen(gen))


def stream_norm(config: NetworkConfig) -> RMSNorm:
    """RMSNorm over the residual width, in the flavour of the backbone."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, scale_in_fp32=config.hidden_act == "relu2")


def head_norm(config: NetworkConfig) -> RMSNorm:
    """RMSNorm over one head's channels, in the flavour of the backbone."""
    return RMSNorm(config.head_dim, config.rms_norm_eps, scale_in_fp32=config.hidden_act == "relu2")
