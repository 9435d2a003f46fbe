"""Network settings that a folder of weights states, and their comparison with those of the network that loads them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from worldsmith.checkpoint.formats.weight_formats import NetworkDifference
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, edge, nano, super_

logger = logging.getLogger(__name__)

HEADS = {
    "action": ("action2llm.", "llm2action.", "action_modality_embed"),
    "sound": ("sound2llm.", "llm2sound.", "sound_modality_embed"),
}
"""Name prefixes of the weights of each head."""

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_action_dim",
         "num_embodiment_domains", "sound_dim")  # fmt: skip
"""Network settings that change tensor shapes. Other sizes are checked when names and shapes of tensors are compared."""
MEANINGS = ("hidden_act", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "qk_norm_for_text",
            "use_und_k_norm_for_gen", "rope_theta", "mrope_section", "latent_channel", "latent_patch_size",
            "timestep_scale")  # fmt: skip
"""Network settings that change the output of the same weights although all shapes match."""
CHOICES = ("base_fps", "enable_fps_modulation", "unified_3d_mrope_reset_spatial_ids",
           "unified_3d_mrope_temporal_modality_margin", "temporal_compression_factor", "sound_latent_fps")  # fmt: skip
"""Settings of temporal and spatial positions that may differ from those of the loaded weights, with a warning."""


def network_difference(stored: Mapping[str, Any], network: NetworkConfig) -> NetworkDifference:
    """Returns the differences between network settings stored with weights and the config of a network.

    The result has three lists: `meanings` (settings that change outputs) and `sizes` (settings that change tensor
    shapes) are errors, `choices` are allowed. Each item is a clause such as `head_dim is 64 in the weights and 128 in
    the config`.

    Args:
        stored: Network settings stored with the weights, by field name; missing fields and None are not compared.
        network: Config of the network that loads the weights.
    """

    def among(names: tuple[str, ...]) -> list[str]:
        return [
            f"{name} is {stored[name]!r} in the weights and {getattr(network, name)!r} in the config"
            for name in names
            if stored.get(name) is not None and stored[name] != getattr(network, name)
        ]

    return NetworkDifference(among(MEANINGS), among(SIZES), among(CHOICES))


def network_of(source: WeightSource, heads: Sequence[str] = ()) -> NetworkConfig:
    """Returns the config of the network that weights belong to.

    Args:
        source: The weights.
        heads: Heads ("action", "sound") that the network gets in addition to those in the weights; (): no others.

    Raises:
        UserError: If settings are missing and no released network has the shapes of the weights.
    """
    known = {field.name for field in fields(NetworkConfig)}
    settings = {name: value for name, value in source.settings.items() if name in known}
    missing = [name for name in ("hidden_size", "num_hidden_layers", "rope_theta") if name not in settings]
    tier = released_tier(source.shapes) if missing else None
    if tier is not None:
        settings = asdict(tier)
        logger.info("%s has no config.json: using the released network with the same shapes", source.describe)
    elif missing:
        raise UserError(
            f"{source.describe}: {' and '.join(missing)} of this network are unknown. Put a config.json with its "
            "settings next to the weights"
        )
    for kind, names in HEADS.items():
        settings[f"{kind}_gen"] = kind in heads or any(name.startswith(names[0]) for name in source.shapes)
    network = NetworkConfig(**settings)
    try:
        network.check()
    except ValueError as error:
        raise UserError(f"{source.describe}: {error}") from error
    return network


def released_tier(shapes: Mapping[str, list[int]]) -> NetworkConfig | None:
    """Returns the released network config (Edge, Nano, Super) whose towers have these shapes; None: no match.

    Args:
        shapes: Shape of every weight by internal name; action and sound heads are not compared.
    """
    import torch

    from worldsmith.families.cosmos3.network.network import Cosmos3Network

    towers = {name: shape for name, shape in shapes.items() if name.startswith("language_model.")}
    for tier in (edge(), nano(), super_()):
        with torch.device("meta"):
            parameters = Cosmos3Network(tier).language_model.named_parameters(prefix="language_model")
            if towers == {name: list(parameter.shape) for name, parameter in parameters}:
                return tier
    return None


def head_names(source: WeightSource, heads: Sequence[str]) -> list[str]:
    """Returns the name prefixes of the weights of all requested heads that `source` does not contain.

    Args:
        source: The weights.
        heads: Requested heads, "action" or "sound".
    """
    return [
        name
        for kind in heads
        if not any(stored.startswith(HEADS[kind][0]) for stored in source.shapes)
        for name in HEADS[kind]
    ]
