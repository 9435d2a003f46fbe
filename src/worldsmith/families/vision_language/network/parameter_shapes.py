"""Names and shapes of a backbone's parameters, out of its config.json alone: no tensor is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsmith.models.weights.shapes import Shapes, linear, matrices, norm, repeated

DENSE = ("llama", "mistral", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_vl")
MIXTURES = ("qwen3_moe", "qwen3_vl_moe")
"""Each token passes through some of the experts of a layer."""
TABLES = ("embed_tokens", "pos_embed", "mlp.gate")
"""Matrices that are no linear layers: embeddings, and what chooses experts."""
HEAD = "lm_head.weight"


def parameter_shapes(config: Mapping[str, Any]) -> Shapes | None:
    """Those of the network that transformers makes of it; None for a model type, or settings, not known here."""
    kind = config.get("model_type")
    if kind not in DENSE + MIXTURES or "quantization_config" in config:
        return None
    visual = "vision_config" in config
    # released Qwen2.5-VL files have the settings of the text beside those of the vision
    text, path = (config.get("text_config", config), "model.language_model") if visual else (config, "model")
    try:
        encoder = _windowed if kind == "qwen2_5_vl" else _visual
        shapes = encoder(config["vision_config"]) if visual else Shapes()
        words = (text["vocab_size"], text["hidden_size"])
        shapes |= {f"{path}.embed_tokens.weight": words}
        for index in range(text["num_hidden_layers"]):
            layer = _attention(kind, text) | _feed_forward(kind, text, index)
            shapes |= {f"{path}.layers.{index}.{name}": shape for name, shape in layer.items()}
    except (KeyError, TypeError):  # a default of transformers is meant, or it refuses the settings with its own words
        return None
    shapes |= norm(f"{path}.norm", text["hidden_size"])
    return shapes if is_tied(config) else shapes | {HEAD: words}


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the head's weight is the embedding's."""
    return bool(config.get("tie_word_embeddings"))


def linear_layers(shapes: Shapes) -> list[str]:
    """Paths of the linear layers. A tied head is one, too, and has no weight of its own here."""
    return [path for path in matrices(shapes) if not path.endswith(TABLES)]


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
        inside = text["moe_intermediate_size"]
        experts = text["num_experts"] if "num_experts" in text else text["num_local_experts"]
        shapes |= {"mlp.experts.gate_up_proj": (experts, 2 * inside, hidden)}
        shapes |= {"mlp.experts.down_proj": (experts, hidden, inside), "mlp.gate.weight": (experts, hidden)}
    else:
        shapes |= _gated("mlp", hidden, text["intermediate_size"], bias=bool(text.get("mlp_bias")))
    return shapes | norm("input_layernorm", hidden) | norm("post_attention_layernorm", hidden)


def _gated(path: str, hidden: int, inside: int, *, bias: bool) -> Shapes:
    shapes = linear(f"{path}.gate_proj", hidden, inside, bias=bias) | linear(
        f"{path}.up_proj", hidden, inside, bias=bias
    )
    return shapes | linear(f"{path}.down_proj", inside, hidden, bias=bias)


def is_mixture(text: Mapping[str, Any], index: int) -> bool:
    """Whether a layer of a network of experts has some."""
    alone = index in (text.get("mlp_only_layers") or ())
    return not alone and (index + 1) % text.get("decoder_sparse_step", 1) == 0


def _visual(vision: Mapping[str, Any]) -> Shapes:
    """The vision encoder of Qwen3-VL with its mergers."""
    d, inside = vision["hidden_size"], vision["intermediate_size"]
    frames, patch, merged = vision["temporal_patch_size"], vision["patch_size"], d * vision["spatial_merge_size"] ** 2
    shapes: Shapes = {"patch_embed.proj.weight": (d, vision["in_channels"], frames, patch, patch)}
    shapes |= {"patch_embed.proj.bias": (d,), "pos_embed.weight": (vision["num_position_embeddings"], d)}
    block = norm("norm1", d, bias=True) | norm("norm2", d, bias=True)
    block |= linear("attn.qkv", d, 3 * d) | linear("attn.proj", d, d)
    block |= linear("mlp.linear_fc1", d, inside) | linear("mlp.linear_fc2", inside, d)
    merger = linear("linear_fc1", merged, merged) | linear("linear_fc2", merged, vision["out_hidden_size"])
    shapes |= repeated("blocks", vision["depth"], block)
    shapes |= {f"merger.{name}": shape for name, shape in (norm("norm", d, bias=True) | merger).items()}
    count = len(vision["deepstack_visual_indexes"])
    shapes |= repeated("deepstack_merger_list", count, norm("norm", merged, bias=True) | merger)
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def _windowed(vision: Mapping[str, Any]) -> Shapes:
    """The vision encoder of Qwen2.5-VL with its merger."""
    d, frames, patch = vision["hidden_size"], vision.get("temporal_patch_size", 2), vision["patch_size"]
    merged, channels = d * vision["spatial_merge_size"] ** 2, vision.get("in_channels", vision.get("in_chans", 3))
    block = norm("norm1", d) | norm("norm2", d) | linear("attn.qkv", d, 3 * d) | linear("attn.proj", d, d)
    block |= _gated("mlp", d, vision["intermediate_size"], bias=True)
    shapes: Shapes = {"patch_embed.proj.weight": (d, channels, frames, patch, patch)}
    shapes |= repeated("blocks", vision["depth"], block) | norm("merger.ln_q", d)
    shapes |= linear("merger.mlp.0", merged, merged) | linear("merger.mlp.2", merged, vision["out_hidden_size"])
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}
