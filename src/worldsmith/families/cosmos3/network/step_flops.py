"""Floating-point operations that one training step of the network needs.

With a frozen understanding tower there are none for the text in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.weights.step_flops import ProductCounter, StepFlops

LAYER = "language_model.model.layers.{}."


class StepCounter(ProductCounter):
    """Walks the network as a step does and notes which activations carry gradients.

    `text_lengths` and `latent_lengths` are the tokens of each sample; `network` may be on the meta device.
    """

    def __init__(self, network: nn.Module, text_lengths: Sequence[int], latent_lengths: Sequence[int]) -> None:
        super().__init__(native_parameters(network))
        self.config: NetworkConfig = network.config  # type: ignore[assignment]
        self.width = self.config.num_attention_heads * self.config.head_dim
        self.text_lengths, self.latent_lengths = list(text_lengths), list(latent_lengths)

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
        self.attention(self.width, pairs, 0, q, (k, v), (False, False))
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
        self.attention(self.width, own, text, q, (k, v), seen)
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
