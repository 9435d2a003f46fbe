"""Computes a backbone's parameter shapes from its config.json, and the FLOPs of a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.weights.shapes import Shapes, linear, matrices, norm, repeat_shapes
from worldsmith.models.weights.step_flops import MatmulCounter, StepFlops

DENSE = ("llama", "mistral", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_vl")
MIXTURES = ("qwen3_moe", "qwen3_vl_moe")
"""Model types with mixture-of-experts layers."""
TABLES = ("embed_tokens", "pos_embed", "mlp.gate")
"""Weights that are not linear layers: embeddings, and expert routers."""
HEAD = "lm_head.weight"
COUNTED = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
"""Model types whose operations can be counted."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def parameter_shapes(config: Mapping[str, Any]) -> Shapes | None:
    """Computes the shapes of the parameters, by name, of the network that transformers builds from a config.json.

    Returns None if the model type or the settings are not supported here.
    """
    kind = config.get("model_type")
    if kind not in DENSE + MIXTURES or "quantization_config" in config:
        return None
    visual = "vision_config" in config
    # released Qwen2.5-VL files have the settings of the text next to those of the vision
    text, path = (config.get("text_config", config), "model.language_model") if visual else (config, "model")
    try:
        encoder = _windowed if kind == "qwen2_5_vl" else _visual
        shapes = encoder(config["vision_config"]) if visual else Shapes()
        words = (text["vocab_size"], text["hidden_size"])
        shapes |= {f"{path}.embed_tokens.weight": words}
        for index in range(text["num_hidden_layers"]):
            layer = _attention(kind, text) | _feed_forward(kind, text, index)
            shapes |= {f"{path}.layers.{index}.{name}": shape for name, shape in layer.items()}
    except (KeyError, TypeError):
        return None  # transformers has a default for the missing setting, or rejects the config with its own message
    shapes |= norm(f"{path}.norm", text["hidden_size"])
    return shapes if config.get("tie_word_embeddings") else shapes | {HEAD: words}


def linear_layers(shapes: Shapes) -> list[str]:
    """Returns the module paths of the linear layers in `shapes` (by parameter name); a tied LM head is excluded."""
    return [path for path in matrices(shapes) if not path.endswith(TABLES)]


def step_flops(
    network: Any, lengths: Sequence[int], frames: Sequence[tuple[int, int]], supervised: int
) -> StepFlops | None:
    """Counts the FLOPs of a training step; None for a model type that is not supported.

    Args:
        network: The transformers model; it may be on the meta device.
        lengths: Number of tokens of each sample.
        frames: (rows, columns) in patches of each image and of each temporal position of each video.
        supervised: Number of supervised tokens; logits are computed only for them.
    """
    if network.config.model_type not in COUNTED:
        return None
    return VisionLanguageStepCounter(network, lengths, frames, supervised).count()


class VisionLanguageStepCounter(MatmulCounter):
    """Counts the FLOPs of a training step by walking the network and tracking which activations carry gradients.

    Args:
        network: The transformers model; it may be on the meta device.
        lengths: Number of tokens of each sample.
        frames: (rows, columns) in patches of each image and of each temporal position of each video.
        supervised: Number of supervised tokens; logits are computed only for them.
    """

    def __init__(
        self, network: Any, lengths: Sequence[int], frames: Sequence[tuple[int, int]], supervised: int
    ) -> None:
        from worldsmith.families.vision_language.network.backbone import visual_of

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
        """Returns the FLOPs of a training step.

        Call it only once per object, because a second call would add the same FLOPs to the counts again.
        """
        levels = self.count_vision_encoder() if self.frames else [False]
        stream = self.is_trained(f"{self.root}.embed_tokens") | levels[0]
        for index in range(self.text.num_hidden_layers):
            stream = self.count_decoder_layer(f"{self.root}.layers.{index}", stream)
            stream |= index + 1 < len(levels) and levels[index + 1]
        self.product(self.head, self.supervised, stream | self.is_trained(f"{self.root}.norm"))
        return self.flops

    def count_vision_encoder(self) -> list[bool]:
        """Adds the FLOPs of the vision encoder to the counts of this object.

        Returns:
            Whether gradients flow into the output of the encoder, then the same for each DeepStack output, which is
            added to the hidden states of a decoder layer.
        """
        config, path, tokens = self.vision, "model.visual", self.patches
        stream = self.linear(f"{path}.patch_embed.proj", tokens, False) | self.is_trained(f"{path}.pos_embed")
        full_pairs = sum((rows * columns) ** 2 for rows, columns in self.frames)
        windowed = self.window_pairs()
        added: list[bool] = []
        for index in range(config.depth):
            block = f"{path}.blocks.{index}"
            seen = self.linear(f"{block}.attn.qkv", tokens, stream | self.is_trained(f"{block}.norm1"))
            pairs = full_pairs if windowed is None or index in config.fullatt_block_indexes else windowed
            seen = self.attention(config.hidden_size, pairs, 0, seen, (seen, seen), (False, False))
            stream |= self.linear(f"{block}.attn.proj", tokens, seen)
            stream |= self.count_feed_forward(f"{block}.mlp", tokens, stream | self.is_trained(f"{block}.norm2"))
            if index in getattr(config, "deepstack_visual_indexes", ()):
                added.append(self.count_merger(f"{path}.deepstack_merger_list.{len(added)}", stream))
        return [self.count_merger(f"{path}.merger", stream), *added]

    def window_pairs(self) -> int | None:
        """Returns the number of patch pairs in attention windows (Qwen2.5-VL); None without window attention."""
        if not hasattr(self.vision, "window_size"):
            return None
        side = self.vision.window_size // self.vision.patch_size

        def squares(length: int) -> int:
            return length // side * side**2 + (length % side) ** 2

        return sum(squares(rows) * squares(columns) for rows, columns in self.frames)

    def count_merger(self, path: str, stream: bool) -> bool:
        """Adds the FLOPs of a merger, which converts blocks of patches to visual tokens of the decoder.

        Args:
            path: Module path of the merger.
            stream: Whether its input carries gradients.

        Returns:
            Whether its output carries gradients.
        """
        tokens = self.patches // self.vision.spatial_merge_size**2
        normed = stream | self.is_trained(f"{path}.norm") | self.is_trained(f"{path}.ln_q")
        return self.count_feed_forward(f"{path}.mlp" if f"{path}.mlp.0.weight" in self.shapes else path, tokens, normed)

    def count_feed_forward(self, path: str, tokens: int, stream: bool) -> bool:
        """Adds the FLOPs of a feed-forward layer, gated or not according to the names of its weights.

        Args:
            path: Module path of the layer.
            tokens: Number of tokens or patches.
            stream: Whether its input carries gradients.

        Returns:
            Whether its output carries gradients.
        """
        if f"{path}.gate_proj.weight" in self.shapes:
            return self.count_gated(path, tokens, stream)
        first, second = ("0", "2") if f"{path}.0.weight" in self.shapes else ("linear_fc1", "linear_fc2")
        return self.linear(f"{path}.{second}", tokens, self.linear(f"{path}.{first}", tokens, stream))

    def count_decoder_layer(self, layer: str, stream: bool) -> bool:
        """Adds the FLOPs of a decoder layer for all samples.

        Args:
            layer: Module path of the layer.
            stream: Whether its input carries gradients.

        Returns:
            Whether its output carries gradients.
        """
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
        return stream | (
            self.count_experts(f"{layer}.mlp", normed) if mixed else self.count_gated(f"{layer}.mlp", tokens, normed)
        )

    def count_gated(self, path: str, tokens: int, stream: bool) -> bool:
        inner = self.linear(f"{path}.gate_proj", tokens, stream) | self.linear(f"{path}.up_proj", tokens, stream)
        return self.linear(f"{path}.down_proj", tokens, inner)

    def count_experts(self, path: str, stream: bool) -> bool:
        """Adds the FLOPs of a mixture-of-experts layer.

        Args:
            path: Module path of the layer.
            stream: Whether its input carries gradients.

        Returns:
            Whether its output carries gradients.
        """
        tokens, active_experts = sum(self.lengths), self.text.num_experts_per_tok
        routed = self.product(f"{path}.gate.weight", tokens, stream)
        count = self.shapes[f"{path}.experts.gate_up_proj"][0]
        inner = self.product(f"{path}.experts.gate_up_proj", active_experts * tokens, stream, share=count)
        return routed | self.product(f"{path}.experts.down_proj", active_experts * tokens, inner, share=count)


def _attention(kind: str, text: Mapping[str, Any]) -> Shapes:
    hidden, heads, shapes = text["hidden_size"], text["num_attention_heads"], Shapes()
    head = text["head_dim"] if kind.startswith("qwen3") else text.get("head_dim") or hidden // heads
    bias, out_bias = (True, False) if kind.startswith("qwen2") else (bool(text.get("attention_bias")),) * 2
    for part, count in (("q", heads), ("k", text["num_key_value_heads"]), ("v", text["num_key_value_heads"])):
        shapes |= linear(f"self_attn.{part}_proj", hidden, count * head, bias=bias)
    shapes |= linear("self_attn.o_proj", heads * head, hidden, bias=out_bias)
    if kind.startswith("qwen3"):
        shapes |= norm("self_attn.q_norm", head) | norm("self_attn.k_norm", head)
    return shapes


def _feed_forward(kind: str, text: Mapping[str, Any], index: int) -> Shapes:
    hidden, shapes = text["hidden_size"], Shapes()
    if kind in MIXTURES and is_mixture(text, index):
        intermediate = text["moe_intermediate_size"]
        experts = text["num_experts"] if "num_experts" in text else text["num_local_experts"]
        shapes |= {"mlp.experts.gate_up_proj": (experts, 2 * intermediate, hidden)}
        shapes |= {"mlp.experts.down_proj": (experts, hidden, intermediate), "mlp.gate.weight": (experts, hidden)}
    else:
        shapes |= _gated("mlp", hidden, text["intermediate_size"], bias=bool(text.get("mlp_bias")))
    return shapes | norm("input_layernorm", hidden) | norm("post_attention_layernorm", hidden)


def _gated(path: str, hidden: int, intermediate: int, *, bias: bool) -> Shapes:
    shapes = linear(f"{path}.gate_proj", hidden, intermediate, bias=bias) | linear(
        f"{path}.up_proj", hidden, intermediate, bias=bias
    )
    return shapes | linear(f"{path}.down_proj", intermediate, hidden, bias=bias)


def is_mixture(text: Mapping[str, Any], index: int) -> bool:
    """Returns whether decoder layer `index` is a mixture of experts; `text` is the text section of config.json."""
    alone = index in (text.get("mlp_only_layers") or ())
    return not alone and (index + 1) % text.get("decoder_sparse_step", 1) == 0


def _visual(vision: Mapping[str, Any]) -> Shapes:
    """Returns parameter shapes of Qwen3-VL's vision encoder and mergers, given `vision_config` of config.json."""
    d, intermediate = vision["hidden_size"], vision["intermediate_size"]
    frames, patch, merged = vision["temporal_patch_size"], vision["patch_size"], d * vision["spatial_merge_size"] ** 2
    shapes: Shapes = {"patch_embed.proj.weight": (d, vision["in_channels"], frames, patch, patch)}
    shapes |= {"patch_embed.proj.bias": (d,), "pos_embed.weight": (vision["num_position_embeddings"], d)}
    block = norm("norm1", d, bias=True) | norm("norm2", d, bias=True)
    block |= linear("attn.qkv", d, 3 * d) | linear("attn.proj", d, d)
    block |= linear("mlp.linear_fc1", d, intermediate) | linear("mlp.linear_fc2", intermediate, d)
    merger = linear("linear_fc1", merged, merged) | linear("linear_fc2", merged, vision["out_hidden_size"])
    shapes |= repeat_shapes("blocks", vision["depth"], block)
    shapes |= {f"merger.{name}": shape for name, shape in (norm("norm", d, bias=True) | merger).items()}
    count = len(vision["deepstack_visual_indexes"])
    shapes |= repeat_shapes("deepstack_merger_list", count, norm("norm", merged, bias=True) | merger)
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def _windowed(vision: Mapping[str, Any]) -> Shapes:
    """Returns parameter shapes of Qwen2.5-VL's vision encoder and merger, given `vision_config` of config.json."""
    d, frames, patch = vision["hidden_size"], vision.get("temporal_patch_size", 2), vision["patch_size"]
    merged, channels = d * vision["spatial_merge_size"] ** 2, vision.get("in_channels", vision.get("in_chans", 3))
    block = norm("norm1", d) | norm("norm2", d) | linear("attn.qkv", d, 3 * d) | linear("attn.proj", d, d)
    block |= _gated("mlp", d, vision["intermediate_size"], bias=True)
    shapes: Shapes = {"patch_embed.proj.weight": (d, channels, frames, patch, patch)}
    shapes |= repeat_shapes("blocks", vision["depth"], block) | norm("merger.ln_q", d)
    shapes |= linear("merger.mlp.0", merged, merged) | linear("merger.mlp.2", merged, vision["out_hidden_size"])
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}
