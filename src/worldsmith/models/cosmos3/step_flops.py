"""Floating-point operations that one training step of the network needs, by arithmetic.

What counts: matrix products of linear layers and of attention, forward and backward. A product is counted in the
backward pass only when something trained needs it: with a frozen understanding tower there is none for the text. What
does not count: recomputation, padding, the half of a causal score matrix that is masked, norms, rotary positions,
embeddings, the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from worldsmith.models.cosmos3.architecture import NetworkConfig
from worldsmith.models.parameter_names import native_parameters

LAYER = "language_model.model.layers.{}."


@dataclass(slots=True)
class StepFlops:
    """Operations of one forward and backward pass; a multiplication and an addition are two."""

    linear_forward: int = 0
    linear_backward: int = 0
    attention_forward: int = 0
    attention_backward: int = 0

    @property
    def total(self) -> int:
        return self.linear_forward + self.linear_backward + self.attention_forward + self.attention_backward


class StepCounter:
    """Walks the network as a step does and notes which activations carry gradients.

    `text_lengths` and `latent_lengths` are the tokens of each sample; `network` may be on the meta device.
    """

    def __init__(self, network: nn.Module, text_lengths: Sequence[int], latent_lengths: Sequence[int]) -> None:
        parameters = native_parameters(network)
        self.config: NetworkConfig = network.config  # type: ignore[assignment]
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.trained = {name for name, p in parameters.items() if p.requires_grad}
        self.text_lengths, self.latent_lengths = list(text_lengths), list(latent_lengths)
        self.flops = StepFlops()

    def count(self) -> StepFlops:
        """The operations of the whole step; call once."""
        config, tokens, samples = self.config, sum(self.latent_lengths), len(self.latent_lengths)
        text = self.is_trained("language_model.model.embed_tokens")
        time = self.linear("time_embedder.mlp.0", samples, False)
        latent = self.linear("vae2llm", tokens, False) | self.linear("time_embedder.mlp.2", samples, time)
        for index in range(config.num_hidden_layers):
            last = index == config.num_hidden_layers - 1
            text, seen = self.read(LAYER.format(index), text, last=last)
            latent = self.write(LAYER.format(index), latent, seen)
        self.linear("llm2vae", tokens, latent | self.is_trained("language_model.model.norm_moe_gen"))
        return self.flops

    def read(self, layer: str, stream: bool, *, last: bool) -> tuple[bool, tuple[bool, bool]]:
        """The text half. Whether its stream, and the keys and values that latents see, carry gradients."""
        tokens, attention = sum(self.text_lengths), f"{layer}self_attn."
        normed = stream | self.is_trained(f"{layer}input_layernorm")
        k = self.linear(f"{attention}k_proj", tokens, normed) | self.is_trained(f"{attention}k_norm")
        v = self.linear(f"{attention}v_proj", tokens, normed)
        seen = k | self.is_trained(f"{attention}k_norm_und_for_gen"), v
        if last:  # nobody reads the text after it
            return False, seen
        q = self.linear(f"{attention}q_proj", tokens, normed) | self.is_trained(f"{attention}q_norm")
        pairs = sum(length * (length + 1) // 2 for length in self.text_lengths)
        self.attention(pairs, 0, q, (k, v), (False, False))
        stream |= self.linear(f"{attention}o_proj", tokens, q | k | v)
        return self.mlp(f"{layer}mlp", f"{layer}post_attention_layernorm", tokens, stream), seen

    def write(self, layer: str, stream: bool, seen: tuple[bool, bool]) -> bool:
        """The latent half. Whether its stream carries gradients."""
        tokens, attention = sum(self.latent_lengths), f"{layer}self_attn."
        normed = stream | self.is_trained(f"{layer}input_layernorm_moe_gen")
        q = self.linear(f"{attention}q_proj_moe_gen", tokens, normed) | self.is_trained(f"{attention}q_norm_moe_gen")
        k = self.linear(f"{attention}k_proj_moe_gen", tokens, normed) | self.is_trained(f"{attention}k_norm_moe_gen")
        v = self.linear(f"{attention}v_proj_moe_gen", tokens, normed)
        own = sum(length * length for length in self.latent_lengths)
        text = sum(g * t for g, t in zip(self.latent_lengths, self.text_lengths, strict=True))
        self.attention(own, text, q, (k, v), seen)
        attended = q | k | v | seen[0] | seen[1]
        stream |= self.linear(f"{attention}o_proj_moe_gen", tokens, attended)
        norm = f"{layer}post_attention_layernorm_moe_gen"
        return self.mlp(f"{layer}mlp_moe_gen", norm, tokens, stream)

    def mlp(self, path: str, norm: str, tokens: int, stream: bool) -> bool:
        normed = stream | self.is_trained(norm)
        inner = self.linear(f"{path}.up_proj", tokens, normed)
        if f"{path}.gate_proj.weight" in self.shapes:
            inner |= self.linear(f"{path}.gate_proj", tokens, normed)
        return stream | self.linear(f"{path}.down_proj", tokens, inner)

    def linear(self, path: str, tokens: int, needs_input: bool) -> bool:
        """Adds a linear layer, with its adapter if it has one. Whether its output carries gradients."""
        output = self.product(f"{path}.weight", tokens, needs_input)
        if f"{path}.lora_A.weight" in self.shapes:
            inner = self.product(f"{path}.lora_A.weight", tokens, needs_input)
            output |= self.product(f"{path}.lora_B.weight", tokens, inner)
        return output | (f"{path}.bias" in self.trained)

    def product(self, weight: str, tokens: int, needs_input: bool) -> bool:
        """Adds x·Wᵀ and the products that its gradients need."""
        flops, trained = 2 * tokens * self.shapes[weight].numel(), weight in self.trained
        self.flops.linear_forward += flops
        self.flops.linear_backward += flops * (needs_input + trained)
        return needs_input | trained

    def attention(self, own: int, other: int, q: bool, own_kv: tuple[bool, bool], other_kv: tuple[bool, bool]) -> None:
        """Adds attention over `own` and `other` (query, key) pairs, whose keys and values carry gradients or not."""
        unit = 2 * self.config.num_attention_heads * self.config.head_dim
        self.flops.attention_forward += 2 * unit * (own + other)
        (own_k, own_v), (other_k, other_v) = own_kv, other_kv
        scores = q | own_k | other_k  # dO·Vᵀ, of which the gradients of q and k are made
        of_keys = own * (own_k + own_v) + other * (other_k + other_v)
        self.flops.attention_backward += unit * ((scores + q) * (own + other) + of_keys)

    def is_trained(self, path: str) -> bool:
        """Whether the module of this path has a trained weight of its own."""
        return f"{path}.weight" in self.trained
