"""Names and config of the diffusers layout, both ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from worldsmith.families.cosmos3.network.architecture import edge, nano, super_, tiny
from worldsmith.families.cosmos3.network.network import Cosmos3Network
from worldsmith.families.cosmos3.weights.diffusers_keys import (
    diffusers_to_native,
    native_to_diffusers,
    network_config_from_diffusers,
    transformer_config,
)

PAIRS = {
    "language_model.model.embed_tokens.weight": "embed_tokens.weight",
    "language_model.model.norm_moe_gen.weight": "norm_moe_gen.weight",
    "language_model.lm_head.weight": "lm_head.weight",
    "language_model.model.layers.11.self_attn.q_proj_moe_gen.weight": "layers.11.self_attn.add_q_proj.weight",
    "language_model.model.layers.0.self_attn.o_proj.weight": "layers.0.self_attn.to_out.weight",
    "language_model.model.layers.0.self_attn.o_proj_moe_gen.weight": "layers.0.self_attn.to_add_out.weight",
    "language_model.model.layers.2.self_attn.k_norm_moe_gen.weight": "layers.2.self_attn.norm_added_k.weight",
    "language_model.model.layers.2.mlp_moe_gen.down_proj.weight": "layers.2.mlp_moe_gen.down_proj.weight",
    "time_embedder.mlp.2.bias": "time_embedder.linear_2.bias",
    "vae2llm.weight": "proj_in.weight",
    "llm2action.bias.weight": "action_proj_out.bias.weight",
    "sound_modality_embed": "audio_modality_embed",
}


def test_published_name_pairs_map_both_ways():
    for native, diffusers in PAIRS.items():
        assert native_to_diffusers(native) == diffusers
        assert diffusers_to_native(diffusers) == native


@pytest.mark.parametrize("edge_style", [False, True])
def test_every_parameter_of_a_network_with_all_heads_survives_the_round_trip(edge_style):
    config = replace(tiny(edge_style=edge_style), action_gen=True, sound_gen=True)
    with torch.device("meta"):
        names = list(Cosmos3Network(config).state_dict())
    assert len({native_to_diffusers(name) for name in names}) == len(names)
    assert [diffusers_to_native(native_to_diffusers(name)) for name in names] == names


@pytest.mark.parametrize(
    "name",
    ["vae2llm", "vae2llm.scale", "layers.0.self_attn.q_proj.weight", "language_model.model.layers.x.mlp.up_proj.weight",
     "language_model.model.layers.0.mlp.q_proj.weight", "net.vae2llm.weight"],
)  # fmt: skip
def test_a_name_that_is_not_native_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        native_to_diffusers(name)


@pytest.mark.parametrize("tier", [edge, nano, super_, tiny])
def test_config_round_trip_through_what_diffusers_stores(tier):
    config = replace(tier(), action_gen=True, max_action_dim=32, sound_gen=True)
    with torch.device("meta"):
        stored = Cosmos3OmniTransformer(**transformer_config(replace(config, num_hidden_layers=1))).config
    assert network_config_from_diffusers({**stored, "num_hidden_layers": config.num_hidden_layers}) == config


def test_config_with_an_unknown_key_or_other_arithmetic_is_refused():
    stored = transformer_config(tiny())
    with pytest.raises(ValueError, match="sliding_window"):
        network_config_from_diffusers({**stored, "sliding_window": 4})
    with pytest.raises(ValueError, match="patch_latent_dim 64"):
        network_config_from_diffusers({**stored, "patch_latent_dim": 64})
    with pytest.raises(ValueError, match="attention_dropout"):
        network_config_from_diffusers({**stored, "attention_dropout": 0.1})
