"""The vision fine-tuning recipes have the published values, and their twins differ in sizes and paths only."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.declare.configurable import find
from worldsmith.config.load import load
from worldsmith.config.tree.difference import find_differences
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import fit_degrees
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig, edge, nano, super_
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.trainer import Trainer

NAMES = ["vision_sft_nano", "vision_sft_super", "vision_sft_edge"]
TOWER = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]
TABLE: dict[str, tuple[Any, Any, Any]] = {
    # path: (nano, super, edge), as the published recipes take effect
    "model.config.precision": ("bfloat16",) * 3,
    "model.config.max_num_tokens_after_packing": (45056,) * 3,
    "model.config.joint_attn_implementation": ("two_way",) * 3,
    "model.config.lora_enabled": (False, True, False),
    "model.config.lora_rank": (16,) * 3,
    "model.config.lora_alpha": (32,) * 3,
    "model.config.lora_target_modules": ("q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen",) * 3,
    "model.config.network.action_gen": (False,) * 3,
    "model.config.network.sound_gen": (False,) * 3,
    "model.config.ema.enabled": (True, False, True),
    "model.config.ema.rate": (0.1,) * 3,
    "model.config.ema.iteration_shift": (0,) * 3,
    "model.config.parallelism.context_parallel_shard_degree": (1, 2, 1),
    "model.config.compile.enabled": (True,) * 3,  # not published for Super; it changes no value
    "model.config.compile.compile_dynamic": (True,) * 3,
    "model.config.activation_checkpointing.mode": ("full",) * 3,
    "objective.video_distribution": ("waver",) * 3,
    "objective.image_distribution": ("logitnormal",) * 3,
    "objective.shift.256": (3,) * 3,
    "objective.shift.480": (5,) * 3,
    "objective.shift.720": (10,) * 3,
    "objective.shift_image": (None,) * 3,
    "objective.loss_scale": (1.0, 1.0, 10.0),
    "objective.image_loss_scale": (1.0, 1.0, None),
    "objective.normalize_loss_by_active": (False,) * 3,
    "optimizer.lr": (1e-4, 5e-4, 1e-4),
    "optimizer.betas": ([0.9, 0.95],) * 3,
    "optimizer.eps": (1e-6,) * 3,
    "optimizer.weight_decay": (0.0,) * 3,
    "optimizer.keys_to_select": (TOWER, ["lora_"], [*TOWER, "k_norm_und_for_gen"]),
    "optimizer.lr_multipliers": ({},) * 3,
    "scheduler.cycle_lengths": ([1000],) * 3,
    "scheduler.warm_up_steps": ([50],) * 3,
    "scheduler.f_start": ([0.0],) * 3,
    "scheduler.f_max": ([1.0],) * 3,
    "scheduler.f_min": ([0.0],) * 3,
    "trainer.max_iter": (500,) * 3,
    "trainer.grad_accum_iter": (2,) * 3,
    "trainer.logging_iter": (1,) * 3,
    "trainer.seed": (42,) * 3,
    "trainer.callbacks.grad_clip.clip_norm": (0.1,) * 3,
    "trainer.callbacks.grad_clip.force_finite": (True,) * 3,
    "trainer.callbacks.compile_tokenizer.enabled": (False,) * 3,
    "checkpoint.save_iter": (100,) * 3,
    "checkpoint.save_weights": ("all", "trained", "all"),  # ours: adapters are small, what they adapt is not
    "checkpoint.keys_to_skip_loading": (["net_ema."], ["net_ema.", "lora_"], ["net_ema."]),
    "dataloader_train.max_sequence_length": (45056,) * 3,
    "dataloader_train.max_samples_per_batch": (None,) * 3,
    "dataloader_train.max_caption_tokens": (2048,) * 3,
    "dataloader_train.lookahead": (10,) * 3,
    "dataloader_train.dataset.resolution": ("256",) * 3,
    "dataloader_train.dataset.num_video_frames": (-1,) * 3,
    "dataloader_train.dataset.min_frames": (61,) * 3,
    "dataloader_train.dataset.max_duration": (61.0,) * 3,
    "dataloader_train.dataset.conditioning_fps": (-1.0,) * 3,
    "dataloader_train.dataset.conditioning_config": ({"0": 0.7, "1": 0.2, "2": 0.1},) * 3,
    "dataloader_train.dataset.cfg_dropout_rate": (0.1,) * 3,
    "dataloader_train.dataset.cfg_dropout_keep_metadata": (False,) * 3,
    "dataloader_train.dataset.append_duration_fps_timestamps": (True,) * 3,
    "dataloader_train.dataset.append_resolution_info": (True,) * 3,
    "job.project": ("cosmos3",) * 3,
    "job.group": ("sft",) * 3,
}
SIZES_AND_PATHS = {
    "job.experiment",
    "job.name",
    "job.project",
    "model.config.precision",  # the number format that a CPU is fast in
    "model.config.max_num_tokens_after_packing",
    *(
        f"model.config.network.{name}"
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "mrope_section",
        )
    ),
    "model.config.tokenizer.vae_path",
    "model.config.tokenizer.precision",
    "model.config.text_tokenizer.path",
    "model.config.parallelism.data_parallel_shard_degree",
    "model.config.parallelism.context_parallel_shard_degree",
    "dataloader_train.num_workers",
}  # fmt: skip


def recipe(name: str) -> Trainer.Config:
    return cast(Trainer.Config, get_recipe(name))


def network(config: Trainer.Config) -> NetworkConfig:
    return cast(Cosmos3Generator.Config, config.model.config).network


@pytest.mark.parametrize("path", TABLE)
def test_values_are_the_published_ones(path: str) -> None:
    found = tuple(find(resolve(recipe(name)), tuple(path.split("."))) for name in NAMES)
    assert found == TABLE[path]
    assert [type(value) for value in found] == [type(value) for value in TABLE[path]]


def test_networks_are_the_released_tiers() -> None:
    assert [network(recipe(name)) for name in NAMES] == [nano(), super_(), edge()]


def test_eight_processes_make_the_published_number_of_data_shares() -> None:
    """Super: pairs of ranks work on one sequence, so its data has 4 shares; its weights lie on all 8."""
    degrees = []
    for name in NAMES:
        parallelism = cast(Cosmos3Generator.Config, recipe(name).model.config).parallelism
        degrees.append(
            fit_degrees(
                parallelism.data_parallel_shard_degree,
                parallelism.data_parallel_replicate_degree,
                8,
                context=parallelism.context_parallel_shard_degree,
            )
        )
    assert [(d.data, d.weights) for d in degrees] == [(8, 8), (4, 8), (8, 8)]


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_differs_in_sizes_and_paths_only(name: str) -> None:
    found = {format_path(d.path) for d in find_differences(recipe(name), recipe(f"{name}_tiny"))}
    assert found <= SIZES_AND_PATHS
    assert {"model.config.network.hidden_size", "model.config.tokenizer.vae_path", "model.config.precision"} <= found


def test_the_twin_of_super_keeps_heads_that_are_wider_than_the_stream() -> None:
    for name in NAMES:
        big, small = network(recipe(name)), network(recipe(f"{name}_tiny"))
        wide = [n.num_attention_heads * n.head_dim > n.hidden_size for n in (big, small)]
        assert wide == [name == "vision_sft_super"] * 2
        assert small.num_key_value_heads < small.num_attention_heads


@pytest.mark.parametrize("name", ["vision_sft_nano", "vision_sft_edge"])
def test_the_generation_tower_is_trained_and_nothing_else(name: str) -> None:
    """Judged by the roles of the modules, not by the patterns: the understanding tower is what text alone reads."""
    config = resolve(recipe(f"{name}_tiny"))
    config.optimizer.fused = False
    generator = cast(Cosmos3Generator.Config, config.model.config).build(device="meta")
    config.optimizer.build(network=generator.network)
    trained = {name for name, p in native_parameters(generator.network).items() if p.requires_grad}
    frozen = set(native_parameters(generator.network)) - trained
    assert {"language_model.model.norm_moe_gen.weight", "vae2llm.weight", "llm2vae.bias"} <= trained
    assert {"time_embedder.mlp.0.weight", "time_embedder.mlp.2.bias"} <= trained
    assert {"language_model.model.embed_tokens.weight", "language_model.lm_head.weight"} <= frozen
    for name in frozen - {"language_model.model.embed_tokens.weight", "language_model.lm_head.weight"}:
        twin = name.replace("_proj.weight", "_proj_moe_gen.weight").replace("norm.weight", "norm_moe_gen.weight")
        assert twin in trained or name.replace("mlp.", "mlp_moe_gen.") in trained, name
    assert any("k_norm_und_for_gen" in name for name in trained) == (config.job.name == "vision_sft_edge_tiny")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", ["DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH"])
def test_a_variable_that_is_not_set_is_named(name: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert not load(name, []).warnings
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError) as caught:
        load(name, [])
    (problem,) = caught.value.problems
    assert f"'{missing}' is not set" in problem.message
    assert f"export {missing}" in str(problem.hint)


def test_the_tokenizer_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ("model", "config", "text_tokenizer", "path")
    assert [find(resolve(recipe(name)), path) for name in NAMES] == [
        *["Qwen/Qwen3-VL-8B-Instruct"] * 2,
        "nvidia/Cosmos3-Edge",
    ]
    monkeypatch.setenv("TOKENIZER_PATH", "tokenizers/mine")
    assert {find(resolve(recipe(name)), path) for name in NAMES} == {"tokenizers/mine"}


def test_the_meta_device_holds_the_whole_super_with_its_adapters() -> None:
    """64 B parameters in no memory: rank-16 adapters on the four projections of 64 layers, and nothing else trained."""
    config = resolve(recipe("vision_sft_super"))
    generator = cast(Cosmos3Generator.Config, config.model.config).build(device="meta")
    named = native_parameters(generator.network)
    adapters = {name: p for name, p in named.items() if "lora_" in name}
    assert len(adapters) == 64 * 4 * 2
    q, kv, stream = 64 * 128, 8 * 128, 5120
    assert sum(p.numel() for p in adapters.values()) == 64 * 16 * (2 * (stream + q) + 2 * (stream + kv))
    assert {name for name, p in named.items() if p.requires_grad} == set(adapters)
    assert all(p.device == torch.device("meta") for p in named.values())


def test_a_variable_that_several_values_need_is_one_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe says how to get what it names; a word of the user's own has the usual advice."""
    for name in ("WAN_PATH", "DATASET_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as raised:
        load("wan22_ti2v_5b_lora", ["job.group=${oc.env:WS_NOT_SET}"])
    told = {problem.path: (problem.message, problem.hint or "") for problem in raised.value.problems}
    assert set(told) == {"job.group", "model.config.tokenizer.vae_path", "dataloader_train.dataset.path"}
    message, hint = told["model.config.tokenizer.vae_path"]
    assert "'WAN_PATH' is not set; also for model.config.text_encoder.path, checkpoint.load_path" in message
    assert "hf download Wan-AI/Wan2.2-TI2V-5B-Diffusers --local-dir DIR" in hint
    assert "worldsmith dataset import" in told["dataloader_train.dataset.path"][1]
    assert told["job.group"][1].startswith("run `export WS_NOT_SET=…`")
