"""Floating-point operations that one training step of a reasoner needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsmith.families.vision_language.network.backbone import visual_of
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.weights.step_flops import ProductCounter, StepFlops

COUNTED = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
"""Model types whose layers are walked here."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def step_flops(
    network: Any, lengths: Sequence[int], frames: Sequence[tuple[int, int]], supervised: int
) -> StepFlops | None:
    """Operations for samples of so many tokens, with frames and images of (rows, columns) patches; None: not known.

    Logits are made for `supervised` tokens alone.
    """
    if network.config.model_type not in COUNTED:
        return None
    return StepCounter(network, lengths, frames, supervised).count()


class StepCounter(ProductCounter):
    """Walks the network as a step does."""

    def __init__(
        self, network: Any, lengths: Sequence[int], frames: Sequence[tuple[int, int]], supervised: int
    ) -> None:
        parameters = native_parameters(network)
        super().__init__(parameters)
        self.text: Any = network.config.get_text_config()
        self.vision: Any = getattr(network.config, "vision_config", None)
        self.root = "model.language_model" if visual_of(network) is not None else "model"
        head = network.get_output_embeddings().weight  # which may be the table of embeddings
        self.head = next(name for name, parameter in parameters.items() if parameter is head)
        self.lengths, self.frames, self.supervised = lengths, frames, supervised
        self.patches = sum(rows * columns for rows, columns in frames)

    def count(self) -> StepFlops:
        """The operations of the whole step; call once."""
        levels = self.look() if self.frames else [False]
        stream = self.is_trained(f"{self.root}.embed_tokens") | levels[0]
        for index in range(self.text.num_hidden_layers):
            stream = self.think(f"{self.root}.layers.{index}", stream)
            stream |= index + 1 < len(levels) and levels[index + 1]
        self.product(self.head, self.supervised, stream | self.is_trained(f"{self.root}.norm"))
        return self.flops

    def look(self) -> list[bool]:
        """The vision encoder. Whether its output carries gradients, and what the first layers of the text add."""
        config, path, tokens = self.vision, "model.visual", self.patches
        stream = self.linear(f"{path}.patch_embed.proj", tokens, False) | self.is_trained(f"{path}.pos_embed")
        whole = sum((rows * columns) ** 2 for rows, columns in self.frames)
        windowed = self.window_pairs()
        added: list[bool] = []
        for index in range(config.depth):
            block = f"{path}.blocks.{index}"
            seen = self.linear(f"{block}.attn.qkv", tokens, stream | self.is_trained(f"{block}.norm1"))
            pairs = whole if windowed is None or index in config.fullatt_block_indexes else windowed
            seen = self.attention(config.hidden_size, pairs, 0, seen, (seen, seen), (False, False))
            stream |= self.linear(f"{block}.attn.proj", tokens, seen)
            stream |= self.two_layers(f"{block}.mlp", tokens, stream | self.is_trained(f"{block}.norm2"))
            if index in getattr(config, "deepstack_visual_indexes", ()):
                added.append(self.merge(f"{path}.deepstack_merger_list.{len(added)}", stream))
        return [self.merge(f"{path}.merger", stream), *added]

    def window_pairs(self) -> int | None:
        """Pairs of patches that attend to each other within windows (Qwen2.5-VL); None for an encoder without them."""
        if not hasattr(self.vision, "window_size"):
            return None
        side = self.vision.window_size // self.vision.patch_size

        def squares(length: int) -> int:
            return length // side * side**2 + (length % side) ** 2

        return sum(squares(rows) * squares(columns) for rows, columns in self.frames)

    def merge(self, path: str, stream: bool) -> bool:
        """Patches to tokens of the text."""
        tokens = self.patches // self.vision.spatial_merge_size**2
        normed = stream | self.is_trained(f"{path}.norm") | self.is_trained(f"{path}.ln_q")
        return self.two_layers(f"{path}.mlp" if f"{path}.mlp.0.weight" in self.shapes else path, tokens, normed)

    def two_layers(self, path: str, tokens: int, stream: bool) -> bool:
        """A feed-forward layer, gated or not, by the names of its matrices."""
        if f"{path}.gate_proj.weight" in self.shapes:
            return self.gated(path, tokens, stream)
        first, second = ("0", "2") if f"{path}.0.weight" in self.shapes else ("linear_fc1", "linear_fc2")
        return self.linear(f"{path}.{second}", tokens, self.linear(f"{path}.{first}", tokens, stream))

    def think(self, layer: str, stream: bool) -> bool:
        """A decoder layer. Whether its stream carries gradients."""
        tokens, path = sum(self.lengths), f"{layer}.self_attn"
        normed = stream | self.is_trained(f"{layer}.input_layernorm")
        q, k, v = (self.linear(f"{path}.{name}", tokens, normed) for name in PROJECTIONS)
        q, k = q | self.is_trained(f"{path}.q_norm"), k | self.is_trained(f"{path}.k_norm")
        pairs = sum(length * (length + 1) // 2 for length in self.lengths)
        width = self.shapes[f"{path}.q_proj.weight"][0]
        seen = self.attention(width, pairs, 0, q, (k, v), (False, False))
        stream |= self.linear(f"{path}.o_proj", tokens, seen)
        normed = stream | self.is_trained(f"{layer}.post_attention_layernorm")
        mixed = f"{layer}.mlp.experts.gate_up_proj" in self.shapes
        return stream | (self.experts(f"{layer}.mlp", normed) if mixed else self.gated(f"{layer}.mlp", tokens, normed))

    def gated(self, path: str, tokens: int, stream: bool) -> bool:
        inner = self.linear(f"{path}.gate_proj", tokens, stream) | self.linear(f"{path}.up_proj", tokens, stream)
        return self.linear(f"{path}.down_proj", tokens, inner)

    def experts(self, path: str, stream: bool) -> bool:
        """Each token goes through some of the experts."""
        tokens, some = sum(self.lengths), self.text.num_experts_per_tok
        routed = self.product(f"{path}.gate.weight", tokens, stream)
        count = self.shapes[f"{path}.experts.gate_up_proj"][0]
        inner = self.product(f"{path}.experts.gate_up_proj", some * tokens, stream, share=count)
        return routed | self.product(f"{path}.experts.down_proj", some * tokens, inner, share=count)
