"""The naming schemes in which such a network's tensors are stored, recognised by the names themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from worldsmith.checkpoint.diffusers_keys import STACK, diffusers_to_native, network_config_from_diffusers

NATIVE_PREFIX = "model.net."
NATIVE_TYPE = "cosmos3_omni"


@dataclass(frozen=True, slots=True)
class Layout:
    """One naming scheme, applied to the tensors of one folder."""

    describe: str
    """What a folder in it is called, for people."""
    keys: Mapping[str, str]
    """Native name → name in the file."""
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The `NetworkConfig` values that the config.json of such a folder states; raises ValueError for nonsense."""


def find_layout(files: Iterable[str]) -> Layout | None:
    """The layout of a folder's tensors; None for one that is not known."""
    keys = list(files)
    if any(key.startswith(NATIVE_PREFIX) for key in keys):
        names = {key.removeprefix(NATIVE_PREFIX): key for key in keys if key.startswith(NATIVE_PREFIX)}
        names = {name: key for name, key in names.items() if ".visual." not in name}
        return Layout("native export", names, native_settings)
    for describe, rename, read_config in (
        ("Nemotron-style reasoner", nemotron_name, text_settings),
        ("Qwen3-VL reasoner", reasoner_name, text_settings),
        ("diffusers transformer", diffusers_name, diffusers_settings),
    ):
        names = named(keys, rename)
        if f"{STACK}layers.0.self_attn.q_proj.weight" in names:
            whole = any("_moe_gen" in name for name in names) or rename is not diffusers_name
            return Layout(describe if whole else "Edge reasoner", names, read_config)
    return None


def named(keys: Iterable[str], rename: Callable[[str], str | None]) -> dict[str, str]:
    return {name: key for key in keys if (name := rename(key)) is not None}


def diffusers_name(key: str) -> str | None:
    """`[transformer.]layers.0.self_attn.to_q.weight` → native; None for what belongs to another component."""
    try:
        return diffusers_to_native(key.removeprefix("transformer."))
    except ValueError:
        return None


def reasoner_name(key: str) -> str | None:
    """`model.language_model.layers.0.…`, `model.layers.0.…` or `layers.0.…` → native; None for other towers."""
    if key == "lm_head.weight":
        return f"language_model.{key}"
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model."):
        if key.startswith(prefix):
            key = key.removeprefix(prefix)
            break
    return STACK + key if key.startswith(("layers.", "embed_tokens.", "norm.")) else None


def nemotron_name(key: str) -> str | None:
    """Blocks that alternate attention (even) and MLP (odd), two of which make one layer → native."""
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


def native_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """From our own export: its `model` section holds the generator's whole config."""
    model = config.get("model") or {}
    return dict((model.get("config") or {}).get("network") or {})


def diffusers_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """From `transformer/config.json`, or from the reasoner's config at the root of a repository."""
    if config.get("_class_name") == "Cosmos3OmniTransformer":
        network = network_config_from_diffusers({k: v for k, v in config.items() if not k.startswith("_")})
        fields = asdict(network)
        del fields["initializer_range"]
        return fields
    return text_settings(config)


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """From a transformers config with a Qwen3-VL, Edge or Nemotron text model."""
    text = config.get("text_config") or config
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "initializer_range")  # fmt: skip
    settings = {name: text[name] for name in same if text.get(name) is not None}
    if not settings:
        return {}
    for switch in ("attention_bias", "mlp_bias"):
        if text.get(switch):
            raise ValueError(f"{switch} is true, and this family of networks has no such biases")
    kind = str(text.get("model_type", config.get("model_type", "")))
    edge = text.get("hidden_act", text.get("mlp_hidden_act")) == "relu2"
    if not edge and "qwen3" not in kind and kind != NATIVE_TYPE:
        raise ValueError(f"model_type is '{kind}'; expected a Qwen3-VL, Edge or Nemotron text model")
    if "moe" in kind:
        raise ValueError(f"model_type is '{kind}': mixture-of-experts reasoners are not part of this family")
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    theta = text.get("rope_theta", rope.get("rope_theta"))
    section = rope.get("mrope_section")
    settings |= {"hidden_act": "relu2", "qk_norm_for_text": False, "use_und_k_norm_for_gen": True} if edge else {
        "hidden_act": "silu", "qk_norm_for_text": True, "use_und_k_norm_for_gen": False
    }  # fmt: skip
    if theta is not None:
        settings["rope_theta"] = float(theta)
    if section is not None:
        settings["mrope_section"] = list(section)
    return settings
