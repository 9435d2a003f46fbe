"""The released tiers on the meta device: names, shapes and counts of all tensors, without a byte of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from worldsmith.families.cosmos3.network.architecture import NetworkConfig, edge, nano, super_
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.weights.diffusers_keys import native_to_diffusers, transformer_config

TIERS = {
    # tier: (tensors, billions of parameters, billions of the generation pathway), with all heads, as published
    "edge": (edge, 554, 3.37, 1.42),
    "nano": (nano, 814, 15.17, 6.98),
    "super": (super_, 1430, 64.02, 31.26),
}
SIZES = {
    # tier: vocabulary, hidden, layers, heads, key heads, MLP, as published
    "edge": (131072, 2048, 28, 16, 8, 9216),
    "nano": (151936, 4096, 36, 32, 8, 12288),
    "super": (151936, 5120, 64, 64, 8, 25600),
}


@pytest.fixture(scope="module", params=TIERS)
def tier(request: pytest.FixtureRequest) -> tuple[str, NetworkConfig, dict[str, torch.Size]]:
    """Name, config with all heads, and {native name: shape}."""
    config = replace(TIERS[request.param][0](), action_gen=True, sound_gen=True)
    config.check()
    with torch.device("meta"):
        network = Cosmos3Network(config)
    return request.param, config, {name: value.shape for name, value in network.state_dict().items()}


def test_counts_are_the_published_ones(tier) -> None:
    """The generation pathway is its tower with all heads; what is left is the understanding tower."""
    name, _, shapes = tier
    _, tensors, billions, pathway = TIERS[name]
    assert len(shapes) == tensors
    assert round(sum(shape.numel() for shape in shapes.values()) / 1e9, 2) == billions
    generation = [
        shape
        for name, shape in shapes.items()
        if "moe_gen" in name or "und_for_gen" in name or not name.startswith("language_model.")
    ]
    assert round(sum(shape.numel() for shape in generation) / 1e9, 2) == pathway


def test_names_and_shapes_are_the_published_ones(tier) -> None:
    """Against the published table of native names, written out here."""
    name, _, shapes = tier
    assert {key: tuple(shape) for key, shape in shapes.items()} == published_shapes(name)


def test_names_and_shapes_are_those_of_diffusers(tier) -> None:
    """Through the key map and the converted config, every tensor of the diffusers transformer, and no other."""
    _, config, shapes = tier
    with torch.device("meta"):
        theirs = Cosmos3OmniTransformer(**transformer_config(config)).state_dict()
    mapped = [native_to_diffusers(name) for name in shapes]
    assert len(set(mapped)) == len(mapped)
    assert dict(zip(mapped, shapes.values())) == {name: value.shape for name, value in theirs.items()}


def published_shapes(tier: str) -> dict[str, tuple[int, ...]]:
    vocabulary, hidden, layers, heads, key_heads, mlp = SIZES[tier]
    q, kv, head, patch = heads * 128, key_heads * 128, 128, 192
    action, domains, sound = 64, 32, 64
    shapes: dict[str, tuple[int, ...]] = {
        "language_model.model.embed_tokens.weight": (vocabulary, hidden),
        "language_model.lm_head.weight": (vocabulary, hidden),
        "vae2llm.weight": (hidden, patch), "vae2llm.bias": (hidden,),
        "llm2vae.weight": (patch, hidden), "llm2vae.bias": (patch,),
        "time_embedder.mlp.0.weight": (hidden, 256), "time_embedder.mlp.0.bias": (hidden,),
        "time_embedder.mlp.2.weight": (hidden, hidden), "time_embedder.mlp.2.bias": (hidden,),
        "action2llm.fc.weight": (domains, action * hidden), "action2llm.bias.weight": (domains, hidden),
        "llm2action.fc.weight": (domains, hidden * action), "llm2action.bias.weight": (domains, action),
        "action_modality_embed": (hidden,),
        "sound2llm.weight": (hidden, sound), "sound2llm.bias": (hidden,),
        "llm2sound.weight": (sound, hidden), "llm2sound.bias": (sound,),
        "sound_modality_embed": (hidden,),
    }  # fmt: skip
    for tower in ("", "_moe_gen"):
        shapes[f"language_model.model.norm{tower}.weight"] = (hidden,)
        for i in range(layers):
            layer = f"language_model.model.layers.{i}"
            shapes[f"{layer}.input_layernorm{tower}.weight"] = (hidden,)
            shapes[f"{layer}.post_attention_layernorm{tower}.weight"] = (hidden,)
            shapes[f"{layer}.self_attn.q_proj{tower}.weight"] = (q, hidden)
            shapes[f"{layer}.self_attn.k_proj{tower}.weight"] = (kv, hidden)
            shapes[f"{layer}.self_attn.v_proj{tower}.weight"] = (kv, hidden)
            shapes[f"{layer}.self_attn.o_proj{tower}.weight"] = (hidden, q)
            if tower or tier != "edge":
                shapes[f"{layer}.self_attn.q_norm{tower}.weight"] = (head,)
                shapes[f"{layer}.self_attn.k_norm{tower}.weight"] = (head,)
            elif tier == "edge":
                shapes[f"{layer}.self_attn.k_norm_und_for_gen.weight"] = (head,)
            for gate in ("up", "down") if tier == "edge" else ("gate", "up", "down"):
                shapes[f"{layer}.mlp{tower}.{gate}_proj.weight"] = (hidden, mlp) if gate == "down" else (mlp, hidden)
    return shapes
