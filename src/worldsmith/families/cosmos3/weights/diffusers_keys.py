"""Converts names and config of the network to the layout of `diffusers.Cosmos3OmniTransformer` and back.

Both layouts have the same tensors in the same shapes; only names differ. Names without counterpart raise ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.files.json_file import section

STACK = "language_model.model."

# Module paths: internal → diffusers.
ROOT_MODULES = {
    "vae2llm": "proj_in",
    "llm2vae": "proj_out",
    "time_embedder.mlp.0": "time_embedder.linear_1",
    "time_embedder.mlp.2": "time_embedder.linear_2",
    "action2llm.fc": "action_proj_in.fc",
    "action2llm.bias": "action_proj_in.bias",
    "llm2action.fc": "action_proj_out.fc",
    "llm2action.bias": "action_proj_out.bias",
    "sound2llm": "audio_proj_in",
    "llm2sound": "audio_proj_out",
    "language_model.model.embed_tokens": "embed_tokens",
    "language_model.model.norm": "norm",
    "language_model.model.norm_moe_gen": "norm_moe_gen",
    "language_model.lm_head": "lm_head",
}
PARAMETERS = {
    "action_modality_embed": "action_modality_embed",
    "sound_modality_embed": "audio_modality_embed",
}
LAYER_MODULES = {
    "self_attn.q_proj": "self_attn.to_q",
    "self_attn.k_proj": "self_attn.to_k",
    "self_attn.v_proj": "self_attn.to_v",
    "self_attn.o_proj": "self_attn.to_out",
    "self_attn.q_norm": "self_attn.norm_q",
    "self_attn.k_norm": "self_attn.norm_k",
    "self_attn.q_proj_moe_gen": "self_attn.add_q_proj",
    "self_attn.k_proj_moe_gen": "self_attn.add_k_proj",
    "self_attn.v_proj_moe_gen": "self_attn.add_v_proj",
    "self_attn.o_proj_moe_gen": "self_attn.to_add_out",
    "self_attn.q_norm_moe_gen": "self_attn.norm_added_q",
    "self_attn.k_norm_moe_gen": "self_attn.norm_added_k",
    "self_attn.k_norm_und_for_gen": "self_attn.k_norm_und_for_gen",
    **{
        name: name
        for tower in ("", "_moe_gen")
        for name in (
            f"input_layernorm{tower}",
            f"post_attention_layernorm{tower}",
            f"mlp{tower}.gate_proj",
            f"mlp{tower}.up_proj",
            f"mlp{tower}.down_proj",
        )
    },
}

SAME_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "qk_norm_for_text", "use_und_k_norm_for_gen",
    "rope_theta", "attention_bias", "latent_channel", "latent_patch_size", "base_fps", "enable_fps_modulation",
    "unified_3d_mrope_reset_spatial_ids", "unified_3d_mrope_temporal_modality_margin", "timestep_scale", "action_gen",
    "num_embodiment_domains", "sound_gen", "sound_latent_fps",
)  # fmt: skip
# Fields of files without a field in `NetworkConfig`: metadata, or fixed by the architecture.
UNUSED_FIELDS = ("dtype", "torch_dtype", "backbone_type", "action_dim", "sound_dim", "rope_scaling", "rope_axes_dim",
                 "patch_latent_dim", "attention_dropout", "temporal_compression_factor")  # fmt: skip


def native_to_diffusers(name: str) -> str:
    """Converts an internal parameter name to the name in diffusers.

    Example: `language_model.model.layers.0.self_attn.q_proj.weight` becomes `layers.0.self_attn.to_q.weight`.

    Raises:
        ValueError: If the name is unknown.
    """
    return renamed(name, f"{STACK}layers.", "layers.", ROOT_MODULES, LAYER_MODULES, PARAMETERS, "an internal")


def diffusers_to_native(name: str) -> str:
    """Converts a parameter name in diffusers to the internal name.

    Example: `layers.0.self_attn.to_q.weight` becomes `language_model.model.layers.0.self_attn.q_proj.weight`.

    Raises:
        ValueError: If the name is unknown.
    """
    tables = (inverse(ROOT_MODULES), inverse(LAYER_MODULES), inverse(PARAMETERS))
    return renamed(name, "layers.", f"{STACK}layers.", *tables, "a diffusers")


def renamed(
    name: str,
    layers_from: str,
    layers_to: str,
    root_modules: Mapping[str, str],
    layer_modules: Mapping[str, str],
    parameters: Mapping[str, str],
    layout: str,
) -> str:
    if name in parameters:
        return parameters[name]
    module, _, leaf = name.rpartition(".")
    if leaf in ("weight", "bias"):
        if module in root_modules:
            return f"{root_modules[module]}.{leaf}"
        index, _, inner = module.removeprefix(layers_from).partition(".")
        if module.startswith(layers_from) and index.isdecimal() and inner in layer_modules:
            return f"{layers_to}{index}.{layer_modules[inner]}.{leaf}"
    raise ValueError(f"'{name}' is not {layout} parameter name of the generator")


def inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {value: key for key, value in table.items()}


def transformer_config(config: NetworkConfig) -> dict[str, Any]:
    """Returns the content of `transformer/config.json` for a network, without the class name.

    The keys are the constructor arguments of diffusers' `Cosmos3OmniTransformer`.
    """
    section = list(config.mrope_section)
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        "action_dim": config.max_action_dim,
        "sound_dim": config.sound_dim,
        "patch_latent_dim": config.patch_dim,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": section, "rope_type": "default"},
        "rope_axes_dim": section,
    }


def network_config_from_diffusers(config: Mapping[str, Any]) -> NetworkConfig:
    """Converts the content of `transformer/config.json` to a config; missing keys have the released (Nano) values.

    Raises:
        ValueError: If a key is unknown or a value is not supported.
    """
    known = {*SAME_FIELDS, *UNUSED_FIELDS}
    unknown = [key for key in config if key not in known and not key.startswith("_")]
    if unknown:
        raise ValueError(f"unknown keys in the transformer config: {', '.join(sorted(unknown))}")
    if config.get("attention_dropout"):
        raise ValueError(f"transformer config has attention_dropout {config['attention_dropout']}; only 0 is supported")
    types = {field.name: field.type for field in fields(NetworkConfig)}
    values: dict[str, Any] = {name: config[name] for name in SAME_FIELDS if config.get(name) is not None}
    values = {name: float(value) if types[name] == "float" else value for name, value in values.items()}
    slots = config.get("rope_axes_dim") or section(config, "rope_scaling").get("mrope_section")
    renamed_values = {
        "mrope_section": None if slots is None else list(slots),
        "max_action_dim": config.get("action_dim"),
        "sound_dim": config.get("sound_dim"),
        "temporal_compression_factor": config.get("temporal_compression_factor"),
    }
    values |= {name: value for name, value in renamed_values.items() if value is not None}
    network = NetworkConfig(**values)
    network.check()
    if config.get("patch_latent_dim", network.patch_dim) != network.patch_dim:
        raise ValueError(
            f"transformer config has patch_latent_dim {config['patch_latent_dim']}, but latent_patch_size "
            f"{network.latent_patch_size} and latent_channel {network.latent_channel} give {network.patch_dim}"
        )
    return network
