"""Recognizes the naming schemes of Cosmos3 weights, and maps language model weights to those of a Qwen3-VL folder."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from worldsmith.checkpoint.formats.family_formats import FamilyFormats
from worldsmith.checkpoint.formats.weight_formats import NATIVE_PREFIX, Naming, read_network
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.network.architecture import TOWER, NetworkConfig, edge
from worldsmith.families.cosmos3.weights.diffusers_keys import STACK, diffusers_to_native, network_config_from_diffusers
from worldsmith.families.cosmos3.weights.network_settings import network_difference, network_of
from worldsmith.files.json_file import section
from worldsmith.models.lora import is_adapter

logger = logging.getLogger(__name__)

NATIVE_TYPE = "cosmos3_omni"
TRANSFORMER_CLASS = "Cosmos3OmniTransformer"
HEADS = ("vae2llm.", "llm2vae.", "time_embedder.", "action2llm.", "llm2action.", "action_modality_embed", "sound2llm.",
         "llm2sound.", "sound_modality_embed")  # fmt: skip
"""Name prefixes of generator parameters outside of the language model; a checkpoint with only the language model
(reasoner) contains none of them."""
HEAD = "language_model.lm_head.weight"
QWEN_STACK, QWEN_HEAD = "model.language_model.", "lm_head.weight"


def find_naming(keys: Sequence[str], formats: FamilyFormats) -> Naming | None:
    """Returns the naming scheme of a folder's tensors; None if they do not belong to a Cosmos3 network.

    Args:
        keys: Tensor names in the folder.
        formats: Weight formats of the family; only `family` and `native_settings` are used.
    """
    prefix = next((prefix for prefix in (NATIVE_PREFIX, "net.") if any(key.startswith(prefix) for key in keys)), None)
    if prefix is not None:
        own = {key.removeprefix(prefix): key for key in keys if key.startswith(prefix)}
        own = {name: key for name, key in own.items() if ".visual." not in name}
        return naming_with_copies(formats.family, "native export", own, formats.native_settings)
    blocks = keys_by_native_name(keys, nemotron_name)
    layers = {name.split(".")[3] for name in blocks if name.startswith(f"{STACK}layers.")}
    for describe, names, read_config in (
        ("Nemotron-style reasoner", blocks, partial(nemotron_settings, layers=len(layers))),
        ("Qwen3-VL reasoner", keys_by_native_name(keys, reasoner_name), text_settings),
        ("diffusers transformer", keys_by_native_name(keys, diffusers_name), diffusers_settings),
    ):
        if f"{STACK}layers.0.self_attn.q_proj.weight" in names:
            if read_config is diffusers_settings and is_reasoner(names):
                describe = "Cosmos3-Edge reasoner"
            return naming_with_copies(formats.family, describe, names, partial(read_network_settings, read_config))
    return None


def language_weights(source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
    """Maps names of the language model's weights in a Qwen3-VL folder to their internal parameter names.

    Args:
        source: Weights of a generator.
        config: Content of config.json of the Qwen3-VL folder.

    Raises:
        UserError: If the generator's language model differs from that of the folder, or has adapters.
    """
    network = network_of(source)
    try:
        difference = network_difference(text_settings(config), network)
    except ValueError as error:
        raise UserError(f"the model folder's config.json: {error}") from error
    differing = [*difference.meanings, *difference.sizes]
    if differing:
        raise UserError(
            f"{source.describe} has another language model than the model folder: {'; '.join(differing)}. Set "
            "--vlm-model-name to the folder of a model of the same size"
        )
    names = [name for name in source.shapes if name.startswith("language_model.") and not is_generation(name)]
    adapted = [name for name in names if is_adapter(name)]
    if adapted:
        raise UserError(
            f"{source.describe} has adapters in addition to its language model, such as {adapted[0]}; merge them "
            "first: `worldsmith export RUN --format native -o DIR`"
        )
    return {qwen_name(name): name for name in names if ".visual." not in name}


def read_network_settings(
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]], config: Mapping[str, Any]
) -> dict[str, Any]:
    return read_network(read_config(config), NetworkConfig)


def naming_with_copies(
    family: str, describe: str, names: Mapping[str, str], read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> Naming:
    """Returns the naming scheme of a folder's tensors; for a reasoner, it also defines copies for the generation tower.

    A reasoner (language model) has only the understanding tower, whose weights also initialize the generation tower.
    For a reasoner, the function `lacks` of the result returns True for weights of the generation tower and heads.

    Args:
        family: Name of the model family.
        describe: Name of the folder's format in messages, such as "native export".
        names: Internal parameter name → name in the file.
        read_config: Function from the content of config.json to the network settings, by field of `NetworkConfig`.
    """
    if not is_reasoner(names):
        return Naming(family, describe, names, read_config)
    copies = copies_of_understanding(names)
    head, table = "language_model.lm_head.weight", "language_model.model.embed_tokens.weight"
    if head not in names and table in names:
        copies[head] = table
    return Naming(family, describe, names, read_config, copies, is_generation)


def is_reasoner(names: Iterable[str]) -> bool:
    """Returns whether no internal name in `names` belongs to the generation tower, as in a reasoner's weights."""
    return not any(TOWER in name for name in names)


def is_generation(name: str) -> bool:
    """Returns whether a weight with this internal name is in the generation tower or heads, which a reasoner lacks."""
    return name.startswith(HEADS) or TOWER in name or "k_norm_und_for_gen" in name


def copies_of_understanding(names: Iterable[str]) -> dict[str, str]:
    """Maps names of generation-tower weights to those of the understanding-tower weights that initialize them.

    Args:
        names: Internal names of the weights of the understanding tower.
    """
    return {generation_name(name): name for name in names if name.startswith((f"{STACK}layers.", f"{STACK}norm."))}


def generation_name(name: str) -> str:
    """Converts an understanding-tower name to that of the generation tower.

    Examples: `….q_proj.weight` → `….q_proj_moe_gen.weight`, `….mlp.…` → `….mlp_moe_gen.…`.
    """
    if ".mlp." in name:
        return name.replace(".mlp.", f".mlp{TOWER}.", 1)
    module, _, leaf = name.rpartition(".")
    return f"{module}{TOWER}.{leaf}"


def keys_by_native_name(keys: Iterable[str], rename: Callable[[str], str | None]) -> dict[str, str]:
    return {name: key for key in keys if (name := rename(key)) is not None}


def diffusers_name(key: str) -> str | None:
    """Converts a tensor name in diffusers to the internal name; None for other components than the transformer.

    Example: `transformer.layers.0.self_attn.to_q.weight`, with or without the prefix `transformer.`.
    """
    try:
        return diffusers_to_native(key.removeprefix("transformer."))
    except ValueError:
        return None


def reasoner_name(key: str) -> str | None:
    """Converts a tensor name of a reasoner to the internal name; None for other tensors, such as the vision encoder's.

    Names start with `model.language_model.layers.0.…`, `model.layers.0.…` or `layers.0.…`.
    """
    if key == "lm_head.weight":
        return f"language_model.{key}"
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model."):
        if key.startswith(prefix):
            key = key.removeprefix(prefix)
            break
    return STACK + key if key.startswith(("layers.", "embed_tokens.", "norm.")) else None


def nemotron_name(key: str) -> str | None:
    """Converts a tensor name of a Nemotron reasoner to the internal name; None for other tensors.

    Nemotron's blocks 2n (attention) and 2n + 1 (MLP) become layer n.
    """
    if key.startswith("mtp."):  # heads that predict tokens further ahead count their own layers
        return None
    leaf = re.sub(r"^(?:.*\.)?(?=(?:layers|embeddings|norm_f|lm_head)\.)", "", key)
    if leaf in NEMOTRON_ENDS:
        return NEMOTRON_ENDS[leaf]
    block = re.fullmatch(r"layers\.(\d+)\.(?:(norm)|mixer\.(\w+_proj))\.weight", leaf)
    if block is None:
        return None
    layer, odd = divmod(int(block[1]), 2)
    if block[2]:
        part = "post_attention_layernorm" if odd else "input_layernorm"
    else:
        part = f"{'mlp' if odd else 'self_attn'}.{block[3]}"
    return f"{STACK}layers.{layer}.{part}.weight"


NEMOTRON_ENDS = {
    "embeddings.weight": f"{STACK}embed_tokens.weight",
    "norm_f.weight": f"{STACK}norm.weight",
    "lm_head.weight": "language_model.lm_head.weight",
}


def diffusers_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `NetworkConfig`, by name, from `transformer/config.json` or a reasoner's config.json."""
    if config.get("_class_name") == TRANSFORMER_CLASS:
        network = network_config_from_diffusers({k: v for k, v in config.items() if not k.startswith("_")})
        fields = asdict(network)
        del fields["initializer_range"]
        return fields
    return text_settings(config)


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `NetworkConfig`, by name, that a config.json of Qwen3-VL or Cosmos3-Edge states.

    Raises ValueError if the text model is of another type. Returns {} if the config states no network settings.
    """
    text = section(config, "text_config") or config
    settings = read_shared_fields(text)
    settings |= {name: text[name] for name in ("num_hidden_layers", "rms_norm_eps") if text.get(name) is not None}
    if not settings:
        return {}
    refuse_biases(text)
    kind = str(text.get("model_type", config.get("model_type", "")))
    is_edge = text.get("hidden_act") == "relu2"
    if not is_edge and "qwen3" not in kind and kind != NATIVE_TYPE:
        raise ValueError(f"model_type is '{kind}'; expected a Qwen3-VL, Cosmos3-Edge or Nemotron text model")
    if "moe" in kind:
        raise ValueError(f"model_type is '{kind}': mixture-of-experts reasoners are not supported")
    settings |= EDGE_STYLE if is_edge else QWEN_STYLE
    return settings | rope_settings(text)


def nemotron_settings(config: Mapping[str, Any], *, layers: int) -> dict[str, Any]:
    """Returns the fields of `NetworkConfig`, by name, from a Nemotron-H or Cosmos3-Edge config of transformers.

    If head_dim is that of Cosmos3-Edge, missing rotary settings get the values of Edge, with a warning in the log.

    Args:
        config: Content of config.json.
        layers: Number of layers in the tensors; the config counts two blocks per layer.
    """
    text = section(config, "text_config") or config
    if text.get("model_type", config.get("model_type")) != "nemotron_h":
        return text_settings(config)
    refuse_biases(text)
    if text.get("mlp_hidden_act", "relu2") != "relu2":
        raise ValueError(f"mlp_hidden_act is '{text['mlp_hidden_act']}'; expected relu2")
    require_alternating_blocks(text, layers)
    settings = {**read_shared_fields(text), "num_hidden_layers": layers, **EDGE_STYLE}
    for name, words in {"rms_norm_eps": ("layer_norm_epsilon", "norm_eps", "rms_norm_eps"),
                        "head_dim": ("head_dim", "attention_head_dim")}.items():  # fmt: skip
        value = next((text[word] for word in words if text.get(word) is not None), None)
        settings |= {} if value is None else {name: value}
    rope, tier = rope_settings(text), edge()
    absent = {name: getattr(tier, name) for name in ("rope_theta", "mrope_section") if name not in rope}
    if absent and settings.get("head_dim") == tier.head_dim:
        shown = ", ".join(f"{name} = {value}" for name, value in absent.items())
        logger.warning("the Nemotron config lacks %s; values of Cosmos3-Edge are used: %s", " and ".join(absent), shown)
        rope |= absent
    return settings | rope


EDGE_STYLE = {"hidden_act": "relu2", "qk_norm_for_text": False, "use_und_k_norm_for_gen": True}
QWEN_STYLE = {"hidden_act": "silu", "qk_norm_for_text": True, "use_und_k_norm_for_gen": False}
BLOCKS = {"*": "attention", "-": "mlp", "full_attention": "attention", "M": "mamba", "E": "moe"}
"""Type of a Nemotron block by the letter or word that stands for it in a Nemotron-H config."""


def read_shared_fields(text: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a transformers text config that are fields of `NetworkConfig` with the same name."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
             "initializer_range")  # fmt: skip
    return {name: text[name] for name in names if text.get(name) is not None}


def refuse_biases(text: Mapping[str, Any]) -> None:
    for switch in ("attention_bias", "mlp_bias", "use_bias"):
        if text.get(switch):
            raise ValueError(f"{switch} is true, but Cosmos3 networks do not have these biases")


def rope_settings(text: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields `rope_theta` and `mrope_section` of `NetworkConfig` that a transformers text config states."""
    rope = section(text, "rope_parameters") or section(text, "rope_scaling")
    theta, slots = text.get("rope_theta", rope.get("rope_theta")), rope.get("mrope_section")
    settings: dict[str, Any] = {} if theta is None else {"rope_theta": float(theta)}
    return settings if slots is None else {**settings, "mrope_section": list(slots)}


def require_alternating_blocks(text: Mapping[str, Any], layers: int) -> None:
    """Raises ValueError unless the blocks of a Nemotron-H config alternate between attention and MLP.

    Args:
        text: The Nemotron-H text config (section `text_config` of config.json, or its complete content).
        layers: Number of layers in the tensors: the required number of blocks of each type.
    """
    name = "layers_block_type" if text.get("layers_block_type") else "hybrid_override_pattern"
    found = [BLOCKS.get(str(word), str(word)) for word in text.get(name) or ()]
    if found and found != ["attention", "mlp"] * layers:
        shown = f"{', '.join(found[:8])}{', …' if len(found) > 8 else ''} ({len(found)} blocks)"
        raise ValueError(
            f"{name}: expected alternating attention and mlp, {2 * layers} blocks as in the tensors, found {shown}"
        )
    count = text.get("num_hidden_layers")
    if not found and count not in (None, 2 * layers):
        raise ValueError(f"num_hidden_layers: expected {2 * layers} blocks, as in the tensors, found {count}")


def qwen_name(name: str) -> str:
    """Converts an internal parameter name of the language model to the name in a Qwen3-VL folder.

    Example: `language_model.model.layers.0.…` becomes `model.language_model.layers.0.…`.
    """
    return QWEN_HEAD if name == HEAD else QWEN_STACK + name.removeprefix(STACK)
