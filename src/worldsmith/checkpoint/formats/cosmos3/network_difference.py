"""Whether stored weights mean the same in the network that is to hold them: its numbers against the source's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.plain import TAG, from_dict
from worldsmith.models.cosmos3.architecture import NetworkConfig

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_action_dim",
         "num_embodiment_domains", "sound_dim")  # fmt: skip
"""Other values show in the tensors' shapes or names, which are compared one by one."""
MEANINGS = ("hidden_act", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "qk_norm_for_text",
            "use_und_k_norm_for_gen", "rope_theta", "mrope_section", "latent_channel", "latent_patch_size",
            "timestep_scale")  # fmt: skip
"""With other values the same weights compute something else, though every shape may fit."""
CHOICES = ("base_fps", "enable_fps_modulation", "unified_3d_mrope_reset_spatial_ids",
           "unified_3d_mrope_temporal_modality_margin", "temporal_compression_factor", "sound_latent_fps")  # fmt: skip
"""How positions are counted: a fine-tuned run may choose, but should know."""


def differences(stored: Mapping[str, Any], network: NetworkConfig, names: tuple[str, ...]) -> list[str]:
    """`rope_theta is 5e+06 there and 1e+08 here` for every field that both sides state and that differs."""
    return [
        f"{name} is {stored[name]!r} there and {getattr(network, name)!r} here"
        for name in names
        if stored.get(name) is not None and stored[name] != getattr(network, name)
    ]


def stated(settings: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The network fields that a file states, in their own types.

    Raises UserError, naming the file, for an unknown field and for a value of another type.
    """
    given = {name: value for name, value in settings.items() if name != TAG}
    try:
        network = from_dict(given, NetworkConfig)
    except ConfigError as error:
        raise UserError(f"{file}: {'; '.join(problem.render() for problem in error.problems)}") from error
    return {name: getattr(network, name) for name in given}
