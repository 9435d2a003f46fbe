"""Every key of the recipe TOML's reference document: name, default, type, and where it lands for both tasks.

The table is written out here, independently of the schema, from the document itself.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launch_overrides import build_overrides

from worldsmith.config.declare.configurable import find
from worldsmith.config.load import load
from worldsmith.config.toml.recipe_toml import check_table
from worldsmith.config.toml.toml_schema import remap, toml_fields

SAME = "same path"
C = "model.config"
POLICY = "model.config.policy"
LORA_TARGETS = "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen"
VAE = "pretrained/tokenizers/video/wan2pt2/Wan2.2_VAE.pth"
PAR, AC = "model.parallelism", "model.activation_checkpointing"
TOK, CLIP = "trainer.callbacks.compile_tokenizer", "trainer.callbacks.grad_clip"

# TOML path | default | a good value as TOML text | a value of the wrong type | vfm path | vlm path (None: no effect)
TABLE: list[tuple[str, Any, str, str, str | None, str | None]] = [
    ("job.task", "vfm", '"vlm"', "3", SAME, SAME),
    ("job.experiment", "", '"small"', "3", SAME, SAME),
    ("job.project", "", '"p"', "3", SAME, SAME),
    ("job.group", "", '"g"', "true", SAME, SAME),
    ("job.name", "", '"n"', "[]", SAME, SAME),
    ("job.wandb_mode", "disabled", '"offline"', '"banana"', SAME, SAME),
    ("model.max_num_tokens_after_packing", 13312, "-1", "1.5", f"{C}.max_num_tokens_after_packing", None),
    ("model.joint_attn_implementation", "two_way", '"three_way"', '"four_way"', f"{C}.joint_attn_implementation", None),
    ("model.attn_implementation", "cosmos", '"eager"', '"flash"', None, f"{POLICY}.attn_implementation"),
    ("model.lora_enabled", False, "true", '"True"', f"{C}.lora_enabled", f"{C}.lora_enabled"),
    ("model.lora_rank", 16, "8", '"8"', f"{C}.lora_rank", f"{C}.lora_rank"),
    ("model.lora_alpha", 32, "16", "16.0", f"{C}.lora_alpha", f"{C}.lora_alpha"),
    (
        "model.lora_target_modules",
        LORA_TARGETS,
        '"q_proj"',
        '["q"]',
        f"{C}.lora_target_modules",
        f"{C}.lora_target_modules",
    ),
    ("model.precision", "bfloat16", '"float32"', "32", f"{C}.precision", f"{C}.precision"),
    ("model.ema.enabled", True, "false", '"False"', f"{C}.ema.enabled", f"{C}.ema.enabled"),
    ("model.ema.rate", 0.1, "0.2", '"0.2"', f"{C}.ema.rate", f"{C}.ema.rate"),
    ("model.ema.iteration_shift", 0, "7", "7.0", f"{C}.ema.iteration_shift", f"{C}.ema.iteration_shift"),
    (
        f"{PAR}.data_parallel_shard_degree",
        -1,
        "2",
        "true",
        f"{C}.parallelism.data_parallel_shard_degree",
        f"{C}.parallelism.data_parallel_shard_degree",
    ),
    (
        f"{PAR}.data_parallel_replicate_degree",
        1,
        "2",
        "2.0",
        f"{C}.parallelism.data_parallel_replicate_degree",
        f"{C}.parallelism.data_parallel_replicate_degree",
    ),
    (
        f"{PAR}.context_parallel_shard_degree",
        1,
        "2",
        '"2"',
        f"{C}.parallelism.context_parallel_shard_degree",
        f"{C}.parallelism.context_parallel_shard_degree",
    ),
    (
        f"{PAR}.cfg_parallel_shard_degree",
        1,
        "2",
        "[2]",
        f"{C}.parallelism.cfg_parallel_shard_degree",
        f"{C}.parallelism.cfg_parallel_shard_degree",
    ),
    (
        f"{PAR}.fsdp_master_dtype",
        "float32",
        '"bfloat16"',
        '"float16"',
        f"{C}.parallelism.fsdp_master_dtype",
        f"{C}.parallelism.fsdp_master_dtype",
    ),
    ("model.compile.enabled", False, "true", "1", f"{C}.compile.enabled", f"{C}.compile.enabled"),
    (
        "model.compile.compile_dynamic",
        True,
        "false",
        "0",
        f"{C}.compile.compile_dynamic",
        f"{C}.compile.compile_dynamic",
    ),
    (
        f"{AC}.mode",
        "full",
        '"selective"',
        '"sometimes"',
        f"{C}.activation_checkpointing.mode",
        f"{C}.activation_checkpointing.mode",
    ),
    (
        f"{AC}.save_ops_regex",
        ["fmha"],
        '["mm"]',
        '"mm"',
        f"{C}.activation_checkpointing.save_ops_regex",
        f"{C}.activation_checkpointing.save_ops_regex",
    ),
    (
        f"{AC}.preserve_rng_state",
        True,
        "false",
        '"no"',
        f"{C}.activation_checkpointing.preserve_rng_state",
        f"{C}.activation_checkpointing.preserve_rng_state",
    ),
    (
        f"{AC}.determinism_check",
        "default",
        '"match"',
        '"on"',
        f"{C}.activation_checkpointing.determinism_check",
        f"{C}.activation_checkpointing.determinism_check",
    ),
    ("model.tokenizer.vae_path", VAE, '"/vae"', "1", f"{C}.tokenizer.vae_path", None),
    ("model.backbone.model_name", "???", '"q"', "1", None, f"{POLICY}.backbone.model_name"),
    ("model.backbone.safetensors_path", "???", '"/w"', "1", None, f"{POLICY}.backbone.safetensors_path"),
    ("optimizer.betas", [0.9, 0.99], "[0.9, 0.95]", '[0.9, "x"]', SAME, SAME),
    ("optimizer.eps", 1e-8, "1e-6", '"1e-6"', SAME, None),
    ("optimizer.fused", True, "false", '"yes"', SAME, SAME),
    ("optimizer.keys_to_select", [], '["moe_gen"]', '"moe_gen"', SAME, SAME),
    ("optimizer.lr", 2e-4, "1", "true", SAME, SAME),
    ("optimizer.lr_multipliers", {}, '{ "a.b" = 5.0 }', "[5.0]", SAME, SAME),
    ("optimizer.weight_decay", 0.0, "0.1", '"0.1"', SAME, SAME),
    ("scheduler.cycle_lengths", [20000], "[10]", "[10.0]", SAME, SAME),
    ("scheduler.f_max", [1.0], "[2]", "2", SAME, SAME),
    ("scheduler.f_min", [0.0], "[0.1]", '["x"]', SAME, SAME),
    ("scheduler.f_start", [1e-6], "[0.0]", "[true]", SAME, SAME),
    ("scheduler.verbosity_interval", 0, "5", "5.5", SAME, None),
    ("scheduler.warm_up_steps", [100], "[1]", '["1"]', SAME, SAME),
    ("trainer.distributed_parallelism", "fsdp", '"fsdp"', "1", SAME, SAME),
    ("trainer.grad_accum_iter", 1, "2", '"2"', SAME, SAME),
    ("trainer.logging_iter", 50, "1", "1.0", SAME, SAME),
    ("trainer.max_iter", 500, "30", "500.0", SAME, SAME),
    (f"{TOK}.enabled", True, "false", '"off"', SAME, None),
    (f"{TOK}.compile_after_iterations", 3, "4", "4.5", SAME, None),
    (f"{TOK}.warmup_resolutions", None, '["256"]', "256", SAME, None),
    (f"{CLIP}.clip_norm", 1.0, "0.1", '"0.1"', SAME, SAME),
    (f"{CLIP}.force_finite", True, "false", "0", SAME, SAME),
    ("checkpoint.keys_to_skip_loading", [], '["net_ema."]', '"net_ema."', SAME, SAME),
    ("checkpoint.load_path", "???", '"/ckpt"', "1", SAME, SAME),
    ("checkpoint.save_iter", 100, "10", "10.0", SAME, SAME),
    ("dataloader_train.max_samples_per_batch", None, "2", '"2"', SAME, SAME),
    ("dataloader_train.max_sequence_length", None, "9", "9.5", SAME, SAME),
    ("dataloader_train.seed", 42, "1", "1.5", SAME, None),
    ("custom", {}, "{ a = [1, { b = 2 }] }", "3", SAME, SAME),
    # Came after the document:
    ("job.folder", "", '"runs"', "1", SAME, SAME),
    ("job.resume_newest", False, "true", '"true"', SAME, SAME),
    ("dataloader_train.max_caption_tokens", None, "7", "true", SAME, None),
]
IDS = [row[0] for row in TABLE]


def parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def landing(row: tuple[Any, ...], task: str) -> str | None:
    target = row[4] if task == "vfm" else row[5]
    return row[0] if target == SAME else target


def document(path: str, text: str, task: str = "vfm") -> str:
    recipe = "small" if task == "vfm" else "small_vlm"
    job = {"task": f'"{task}"', "experiment": f'"{recipe}"'}
    section, _, key = path.rpartition(".")
    if section == "job":
        return "[job]\n" + "".join(f"{name} = {value}\n" for name, value in {**job, key: text}.items())
    head = "[job]\n" + "".join(f"{name} = {value}\n" for name, value in job.items())
    return f"{head}[{section}]\n{key} = {text}\n" if section else f"{key} = {text}\n{head}"


def test_the_schema_has_exactly_the_keys_of_the_document() -> None:
    assert {entry.path for entry in toml_fields()} == {parts(row[0]) for row in TABLE}
    assert (
        len(TABLE) == 58 + 5
    )  # the leaves of the document, [custom], the caption cap, the dtype of the guide, folder, resume_newest


def test_the_other_key_that_came_later_is_refused_with_the_reason() -> None:
    problems: list[Any] = []
    check_table(tomllib.loads(document("job.upload_reproducible_setup", "true")), problems)
    assert [(p.path, "object store" in p.message) for p in problems] == [("job.upload_reproducible_setup", True)]


@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_the_documented_default(row: tuple[Any, ...]) -> None:
    (entry,) = [entry for entry in toml_fields() if entry.path == parts(row[0])]
    assert entry.default == row[1]
    assert type(entry.default) is type(row[1])


@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_the_type_is_strict(row: tuple[Any, ...]) -> None:
    problems: list[Any] = []
    found = check_table(tomllib.loads(document(row[0], row[2])), problems)
    assert problems == []
    assert parts(row[0]) in {entry.path for entry, _ in found}
    check_table(tomllib.loads(document(row[0], row[3])), problems)
    assert [problem.path.partition("[")[0] for problem in problems] == [row[0]]
    assert problems[0].expected


@pytest.mark.parametrize("task", ["vfm", "vlm"])
@pytest.mark.parametrize("row", TABLE, ids=IDS)
def test_where_the_key_lands(row: tuple[Any, ...], task: str) -> None:
    target = landing(row, task)
    assert remap(parts(row[0]), task) == (None if target is None else parts(target))


@pytest.mark.parametrize("task", ["vfm", "vlm"])
@pytest.mark.parametrize(
    "row",
    [row for row in TABLE if row[0] not in ("job.task", "job.experiment", "custom")],
    ids=[i for i in IDS if i not in ("job.task", "job.experiment", "custom")],
)
def test_the_value_arrives_in_the_tree_and_in_the_override_words(
    row: tuple[Any, ...], task: str, tmp_path: Path, t: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # so that a degree of 2 fits
    path, target = tmp_path / "run.toml", landing(row, task)
    text = document(row[0], row[2], task)
    path.write_text(text)
    words = [word for word in build_overrides(tomllib.loads(text)) if word != "job={}"]
    assert words[:2] == ["--", f"experiment={'small' if task == 'vfm' else 'small_vlm'}"]
    loaded = load(str(path))
    if target is None:
        assert len(words) == 2
        assert any(f"{row[0]} has no effect for task '{task}'" in warning for warning in loaded.warnings)
        return
    raw: Any = tomllib.loads(f"x = {row[2]}")["x"]
    found = find(loaded.tree, parts(target))
    if row[0] == "optimizer.lr_multipliers":
        assert found["a.b"] == raw["a.b"]
        assert words[2] == 'optimizer.lr_multipliers."a.b"=5.0'
    else:
        assert found == raw
        assert words[2].startswith(f"{target}=")
    assert loaded.provenance[parts(target)].kind == "file" or isinstance(found, dict)
