"""Which layers of the network can get a low-rank adapter, known from its sizes alone: no tensor is made."""

from __future__ import annotations

from worldsmith.models.cosmos3.architecture import NetworkConfig


def adaptable_layers(config: NetworkConfig) -> list[str]:
    """Paths of the linear layers that an adapter can be trained for.

    Left out are the language head, the sound heads and the action heads, which the loss does not reach, and the time
    embedder, which computes in float32 whatever its weights' dtype.
    """
    mlp = ("gate_proj", "up_proj", "down_proj") if config.hidden_act == "silu" else ("up_proj", "down_proj")
    inner = [f"self_attn.{part}_proj{tower}" for tower in ("", "_moe_gen") for part in "qkvo"]
    inner += [f"mlp{tower}.{part}" for tower in ("", "_moe_gen") for part in mlp]
    layers = [f"language_model.model.layers.{i}.{part}" for i in range(config.num_hidden_layers) for part in inner]
    return [*layers, "vae2llm", "llm2vae"]
