"""The network that a model folder describes: buffers, ties, first weights, parts, and what is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_reasoner import DECODERS, decoder, model_config, qwen2_5_vl, qwen3_vl, write_folder
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from worldsmith.config.errors import UserError
from worldsmith.config.sections import ParallelismConfig
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.families.vision_language.policy import FreezeConfig
from worldsmith.models.parameter_names import native_parameters


def make(tmp_path: Path, config: Any = None, *, device: str = "cpu", **settings: Any) -> VisionLanguageModel:
    seed = settings.pop("seed", None if device == "meta" else 1)
    model = model_config(write_folder(tmp_path, config), **settings).build(device=device, seed=seed)
    assert isinstance(model, VisionLanguageModel)
    return model


VISUAL = {"qwen3_vl": qwen3_vl, "qwen2_5_vl": qwen2_5_vl}


@pytest.mark.parametrize("name", [*VISUAL, *DECODERS])
def test_buffers_have_the_values_of_transformers(name: str, tmp_path: Path) -> None:
    config = decoder(name) if name in DECODERS else VISUAL[name]()
    kind: Any = AutoModelForCausalLM if name in DECODERS else AutoModelForImageTextToText
    expected = dict(kind.from_config(config, dtype=torch.float32).named_non_persistent_buffers())
    model = make(tmp_path, config)
    found = dict(model.network.named_buffers())
    assert found.keys() == expected.keys()
    assert found
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    model.cast(torch.bfloat16)
    after = dict(model.network.named_buffers())
    assert all(torch.equal(after[key], value) and after[key].dtype == value.dtype for key, value in expected.items())


def test_parameters_have_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    config = qwen3_vl()
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path / "saved")
    from safetensors import safe_open

    with safe_open(tmp_path / "saved" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert set(native_parameters(make(tmp_path, config).network)) == names
    assert {"lm_head.weight", "model.visual.merger.linear_fc1.bias", "model.language_model.norm.weight"} <= names


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_tied_weights_stay_one_parameter(device: str, tmp_path: Path) -> None:
    network = make(tmp_path, qwen3_vl(tied=True), device=device).network
    assert network.lm_head.weight is network.model.language_model.embed_tokens.weight
    assert "lm_head.weight" not in native_parameters(network)


def test_first_weights_depend_on_seed_and_name_alone(tmp_path: Path) -> None:
    config = qwen3_vl()
    whole = native_parameters(make(tmp_path, config).network)
    part = make(tmp_path, config, seed=None)
    names = ["model.visual.blocks.0.attn.qkv.weight", "model.language_model.layers.1.mlp.up_proj.weight"]
    part.init_weights(1, names[::-1])
    assert all(torch.equal(native_parameters(part.network)[name], whole[name]) for name in names)
    other = native_parameters(make(tmp_path, config, seed=2).network)
    assert not torch.equal(other[names[0]], whole[names[0]])
    assert float(whole[names[1]].detach().std()) == pytest.approx(0.02, rel=0.1)
    assert whole["model.language_model.norm.weight"].eq(1).all()
    assert whole["model.visual.merger.norm.bias"].eq(0).all()
    with pytest.raises(ValueError, match="no parameter no_such"):
        part.init_weights(1, ["no_such"])


def test_adapters_begin_without_effect(tmp_path: Path) -> None:
    model = make(tmp_path, lora_enabled=True, lora_rank=4, lora_target_modules="q_proj,visual.blocks.0.attn.qkv")
    trained = {name: p for name, p in native_parameters(model.network).items() if p.requires_grad}
    assert len(trained) == 2 * 3
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in trained)
    assert all(bool(p.any()) == ("lora_A" in name) for name, p in trained.items())


def test_adapters_of_a_frozen_part_are_not_trained(tmp_path: Path) -> None:
    settings = {"lora_enabled": True, "lora_rank": 4, "freeze": FreezeConfig(freeze_vision_encoder=True)}
    model = make(tmp_path, **settings, lora_target_modules="linear_fc1")
    trained = [name for name, p in native_parameters(model.network).items() if p.requires_grad]
    assert trained
    assert all("merger" in name and ".lora_" in name for name in trained)
    with pytest.raises(ValueError, match="all parameters are frozen"):
        make(tmp_path, **settings, lora_target_modules="mlp.linear_fc1")


def test_parts_are_decoder_layers_and_vision_blocks(tmp_path: Path) -> None:
    model = make(tmp_path)
    parts, inner = model.parts(), model.network.model
    assert {id(layer) for layer in parts.layers} == {
        id(layer) for layer in (*inner.visual.blocks, *inner.language_model.layers)
    }
    assert list(parts.uncompiled) == list(inner.visual.blocks)
    assert list(parts.units) == [inner.language_model.embed_tokens]


def test_a_routers_balance_is_a_frozen_weight_in_full_precision(tmp_path: Path) -> None:
    """In transformers it is a buffer, which checkpoints of the run would not have."""
    model = make(tmp_path, decoder("deepseek_v3"))
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert not native_parameters(model.network)[name].requires_grad
    assert model.network.model.layers[1].mlp.gate in model.parts().full_precision
    assert native_parameters(model.network)[name].eq(0).all()


@pytest.mark.parametrize("size", ["8B", "32B"])
def test_full_sizes_have_the_published_shapes(size: str, tmp_path: Path) -> None:
    """Sizes of the released models; the count is added up here by hand."""
    hidden, layers, ffn, heads = {"8B": (4096, 36, 12288, 32), "32B": (5120, 64, 25600, 64)}[size]
    text = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": ffn, "head_dim": 128}
    text |= {"num_attention_heads": heads, "num_key_value_heads": 8, "vocab_size": 151936}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}}
    vision = {"hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304, "out_hidden_size": hidden}
    vision |= {"deepstack_visual_indexes": [8, 16, 24], "num_position_embeddings": 2304}
    model = make(tmp_path, AutoConfig.for_model("qwen3_vl", text_config=text, vision_config=vision), device="meta")
    shapes = {name: tuple(p.shape) for name, p in native_parameters(model.network).items()}
    assert shapes["lm_head.weight"] == shapes["model.language_model.embed_tokens.weight"] == (151936, hidden)
    assert shapes["model.visual.patch_embed.proj.weight"] == (1152, 3, 2, 16, 16)
    assert shapes["model.visual.pos_embed.weight"] == (2304, 1152)
    assert shapes["model.visual.deepstack_merger_list.2.linear_fc2.weight"] == (hidden, 4608)
    assert shapes[f"model.language_model.layers.{layers - 1}.self_attn.q_norm.weight"] == (128,)
    assert f"model.language_model.layers.{layers}.mlp.up_proj.weight" not in shapes
    layer = hidden * 128 * (2 * heads + 2 * 8) + 3 * hidden * ffn + 2 * hidden + 2 * 128
    block = 1152 * (4 * 1152 + 4) + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    merger = 4608 * 4608 + 4608 + 4608 * hidden + hidden
    mergers = 4 * merger + 2 * 1152 + 3 * 2 * 4608
    vision_total = 27 * block + mergers + 1536 * 1152 + 1152 + 2304 * 1152
    total = sum(p.numel() for p in model.network.parameters())
    assert total == layers * layer + 2 * 151936 * hidden + hidden + vision_total
    assert total == {"8B": 8_767_123_696, "32B": 33_357_390_064}[size]


def write_settings(folder: Path, **settings: Any) -> Path:
    path = write_folder(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


def test_what_cannot_be_trained_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model_type is 'vit'; trainable with images and videos: .* qwen3_vl"):
        make(tmp_path / "vit", AutoConfig.for_model("vit"))
    with pytest.raises(ValueError, match=r"'cosmos3_edge' cannot be trained: it cuts images into patches of one frame"):
        make(tmp_path / "edge", AutoConfig.for_model("cosmos3_edge"))
    with pytest.raises(ValueError, match=r"final_logit_softcapping = 30.0: .*does not support"):
        make(tmp_path / "gemma", AutoConfig.for_model("gemma2"))
    with pytest.raises(ValueError, match=r"policy.backbone.model_name is empty"):
        VisionLanguageModel.Config().build(device="meta")
    with pytest.raises(ValueError, match="GptOssForCausalLM does not support it"):
        make(tmp_path / "gpt", decoder("gpt_oss"), attn_implementation="sdpa")
    with pytest.raises(ValueError, match=r"'q_projj' cannot get an adapter.*similar names: q_proj"):
        make(tmp_path / "lora", lora_enabled=True, lora_target_modules="q_projj")
    for degrees in ({"context_parallel_shard_degree": 2}, {"cfg_parallel_shard_degree": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(degrees))} .*write 1"):
            model_config(tmp_path, parallelism=ParallelismConfig(**degrees)).check()


HOSTILE = {
    "text_config": ("x", "text_config: expected an object, found text"),
    "vision_config": (5, "vision_config: expected an object, found a number"),
    "model_type": ([], "model_type: expected a string, found a list"),
    "text_config.num_hidden_layers": (10**9, "num_hidden_layers: expected an integer from 1 to 1000, found 10+$"),
    "vision_config.depth": (10**9, "vision_config.depth: expected an integer from 1 to 1000, found 10+$"),
    "text_config.hidden_size": (-1, "text_config.hidden_size: expected an integer from 1 to 2147483647, found -1"),
    "text_config.vocab_size": (10**12, "text_config.vocab_size: expected an integer from 1 to 2147483647, found"),
    "text_config.num_attention_heads": (
        0,
        "num_attention_heads: expected an integer from 1 to 2147483647, found 0",
    ),
    "text_config.intermediate_size": ("96", "intermediate_size: expected an integer .*, found text"),
    "text_config.head_dim": (True, "head_dim: expected an integer .*, found True"),
    "vision_config.patch_size": (0, "vision_config.patch_size: expected an integer .*, found 0"),
    "vision_config.deepstack_visual_indexes": (9, "transformers cannot build the network: .*deepstack_visual_indexes"),
    "text_config.hidden_act": ("no such", "transformers cannot build the network: .*no such"),
    "text_config.rope_parameters": (3, "transformers cannot build the network: .*rope_parameters"),
}


@pytest.mark.parametrize("key", HOSTILE)
def test_settings_that_no_network_can_have_are_one_line_that_names_the_file_and_the_key(
    key: str, tmp_path: Path
) -> None:
    """Before anything is built: a billion layers are never counted up to."""
    value, words = HOSTILE[key]
    folder = write_folder(tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    *parents, name = key.split(".")
    part = settings
    for parent in parents:
        part = part[parent]
    part[name] = value
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises((UserError, ValueError), match=f"{folder}/config.json: .*{words}") as caught:
        model_config(folder).build(device="meta")
    assert "\n" not in str(caught.value)
    shapes = pytest.raises(UserError) if "transformers" not in words else contextlib.nullcontext()
    with shapes:
        model_config(folder).shapes()


def test_flash_attention_is_refused_where_there_is_none_and_cosmos_takes_the_best(tmp_path: Path) -> None:
    config = model_config(tmp_path, attn_implementation="flash_attention_2")
    with pytest.raises(UserError, match=r"'flash_attention_2': .*use 'sdpa', or 'cosmos'"):
        config.check_device("cpu")
    model = make(tmp_path)
    assert model.network.config._attn_implementation == "sdpa"
    assert model.describe_attention() == "sdpa, the best available here"
    assert make(tmp_path / "gpt", decoder("gpt_oss")).network.config._attn_implementation == "eager"
