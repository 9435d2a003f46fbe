"""Names and shapes by arithmetic are those of the networks that are built on the meta device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from worldsmith.config.tree.references import resolve
from worldsmith.families.cogvideox import architecture as cogvideox
from worldsmith.families.cogvideox.architecture import ImageConfig
from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network import architecture as cosmos3
from worldsmith.families.flux import architecture as flux
from worldsmith.families.flux.model import FluxGenerator
from worldsmith.families.vision_language.network.backbone import make_network
from worldsmith.families.vision_language.network.shapes_and_flops import linear_layers, parameter_shapes
from worldsmith.families.vision_language.published import SIZES
from worldsmith.families.wan import architecture as wan
from worldsmith.families.wan.model import WanGenerator
from worldsmith.models.model import Model


def of_cosmos3(network: cosmos3.NetworkConfig, **fields: Any) -> Model.Config:
    return resolve(Cosmos3Generator.Config(network=replace(network, **fields)))


def of_cogvideox(network: cogvideox.NetworkConfig) -> Model.Config:
    image = ImageConfig() if network.in_channels > network.out_channels else None
    if network.sample_height == 300:  # diffusers makes the grid's table, which these do not use
        network = replace(network, sample_height=96, sample_width=170)
    config = CogVideoXGenerator.Config(network=network, image=image)
    config.text_encoder.max_length = network.max_text_seq_length
    return config


def of_wan(network: wan.NetworkConfig) -> Model.Config:
    config = WanGenerator.Config(network=network)
    config.image_encoder.path = "pipeline" if network.image_dim else ""
    return config


HEADS = {"action_gen": True, "sound_gen": True}
NETWORKS = {
    "cosmos3 tiny": of_cosmos3(cosmos3.tiny()),
    "cosmos3 tiny edge with heads": of_cosmos3(cosmos3.tiny(edge_style=True), **HEADS),
    "edge with heads": of_cosmos3(cosmos3.edge(), **HEADS),
    "nano with heads": of_cosmos3(cosmos3.nano(), **HEADS),
    "super with heads": of_cosmos3(cosmos3.super_(), **HEADS),
    "cogvideox tiny": of_cogvideox(cogvideox.tiny()),
    "cogvideox without norms' weights": of_cogvideox(replace(cogvideox.tiny(), norm_elementwise_affine=False)),
    "cogvideox without biases": of_cogvideox(replace(cogvideox.tiny(), attention_bias=False, patch_bias=False)),
    "2B": of_cogvideox(cogvideox.cogvideox_2b()),
    "5B": of_cogvideox(cogvideox.cogvideox_5b()),
    "5B for images": of_cogvideox(cogvideox.cogvideox_5b_i2v()),
    "1.5": of_cogvideox(cogvideox.cogvideox1_5_5b()),
    "1.5 for images": of_cogvideox(cogvideox.cogvideox1_5_5b_i2v()),
    "wan tiny": of_wan(wan.tiny()),
    "wan without norm": of_wan(replace(wan.tiny(), cross_attn_norm=False)),
    "wan 2.1 1.3B": of_wan(wan.wan21_1b()),
    "wan 14B": of_wan(wan.wan_14b()),
    "wan 2.1 14B for images": of_wan(wan.wan21_i2v_14b()),
    "wan 2.2 14B for images": of_wan(wan.wan22_i2v_14b()),
    "wan 2.2 5B": of_wan(wan.wan22_5b()),
    "flux tiny": FluxGenerator.Config(network=flux.tiny()),
    "flux dev": FluxGenerator.Config(network=flux.flux_dev()),
    "flux schnell": FluxGenerator.Config(network=flux.flux_schnell()),
}
COUNTS = {
    "2B": 1_693_783_872,
    "5B": 5_570_283_072,
    "5B for images": 5_570_479_680 + 54_607_872,
    "1.5": 5_570_676_352,
    "1.5 for images": 5_571_594_880,
    "wan 2.1 1.3B": 1_418_996_800,
    "wan 14B": 14_288_491_584,
    "wan 2.1 14B for images": 16_394_878_784,
    "wan 2.2 14B for images": 14_288_901_184,
    "wan 2.2 5B": 4_999_787_712,
    "flux dev": 11_901_408_320,
    "flux schnell": 11_891_178_560,
}
"""Published, or counted in the published files."""
BILLIONS = {"edge with heads": 3.37, "nano with heads": 15.17, "super with heads": 64.02}
LEFT_OUT = ("lm_head", "sound", "time_embedder")


@pytest.mark.parametrize("name", NETWORKS)
def test_names_and_shapes_are_those_of_the_network(name: str) -> None:
    config = NETWORKS[name]
    network = config.build(device="meta").network
    shapes = config.shapes()
    assert shapes == {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
    if config.family == "cosmos3":
        linear = [path for path in linear if not any(word in path for word in LEFT_OUT)]
    assert sorted(config.adaptable_layers() or ()) == sorted(linear)
    count = config.count_parameters() or 0
    assert count == COUNTS.get(name, count)
    assert round(count / 1e9, 2) == BILLIONS.get(name, round(count / 1e9, 2))


TEXT = {
    "vocab_size": 96, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
BACKBONES: dict[str, dict[str, Any]] = {
    **SIZES,
    "llama": {"model_type": "llama", **TEXT, "head_dim": None, "mlp_bias": True},
    "llama with biases": {"model_type": "llama", **TEXT, "attention_bias": True, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", **TEXT},
    "qwen2": {"model_type": "qwen2", **{key: TEXT[key] for key in TEXT if key != "head_dim"}},
    "qwen3": {"model_type": "qwen3", **TEXT, "attention_bias": True},
    "as Qwen2.5-VL files are written": {
        "model_type": "qwen2_5_vl",
        **{key: TEXT[key] for key in TEXT if key != "head_dim"},
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 0, 0]},
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_heads": 2,
            "in_chans": 3,
            "patch_size": 14,
            "spatial_patch_size": 14,
            "spatial_merge_size": 2,
            "out_hidden_size": 16,
            "fullatt_block_indexes": [1],
        },
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **TEXT, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
}


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_is_known_from_its_config_file(name: str, tmp_path: Path) -> None:
    found = BACKBONES[name]
    (tmp_path / "config.json").write_text(json.dumps(found))
    with torch.device("meta"):
        network: nn.Module = make_network(tmp_path, "sdpa")
    shapes = parameter_shapes(found)
    assert shapes == {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    linear = {path for path, module in network.named_modules() if isinstance(module, nn.Linear)}
    assert set(linear_layers(shapes)) == linear - ({"lm_head"} if found.get("tie_word_embeddings") else set())
    saved = json.loads(network.config.to_json_string())  # type: ignore[operator,union-attr]
    assert parameter_shapes(saved) == shapes


def test_what_is_not_known_is_not_guessed() -> None:
    assert parameter_shapes({"model_type": "deepseek_v3", **TEXT}) is None
    assert parameter_shapes({"model_type": "llama", "vocab_size": 96}) is None
