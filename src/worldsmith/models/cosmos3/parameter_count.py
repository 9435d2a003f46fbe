"""How many parameters a `NetworkConfig` describes, by arithmetic: no tensor is made."""

from __future__ import annotations

from worldsmith.models.cosmos3.architecture import NetworkConfig

TIMESTEP_CHANNELS = 256
"""Channels of the sinusoid that the timestep embedder reads."""


def count_parameters(config: NetworkConfig) -> int:
    """Parameters of `Cosmos3Network(config)`, both towers and all heads that the config asks for."""
    hidden = config.hidden_size
    layers = config.num_hidden_layers * _layer(config)
    ends = 2 * config.vocab_size * hidden + 2 * hidden  # embedding and language head; one final norm per tower
    patches = _linear(config.patch_dim, hidden) + _linear(hidden, config.patch_dim)
    time = _linear(TIMESTEP_CHANNELS, hidden) + _linear(hidden, hidden)
    total = layers + ends + patches + time
    if config.action_gen:
        both_ways = 2 * config.max_action_dim * hidden + hidden + config.max_action_dim
        total += config.num_embodiment_domains * both_ways + hidden
    if config.sound_gen:
        total += _linear(config.sound_dim, hidden) + _linear(hidden, config.sound_dim) + hidden
    return total


def _layer(config: NetworkConfig) -> int:
    """One decoder layer: projections, MLP and norms of both towers."""
    hidden, head = config.hidden_size, config.head_dim
    heads = config.num_attention_heads + config.num_key_value_heads
    projections = 2 * heads * head * hidden  # q and o; k and v
    mlp = (3 if config.hidden_act == "silu" else 2) * hidden * config.intermediate_size
    head_norms = 2 + 2 * config.qk_norm_for_text + config.use_und_k_norm_for_gen
    return 2 * (projections + mlp + 2 * hidden) + head_norms * head


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
