"""The recipe TOML: the documented fields, remaps and override list; the loaded tree; every mistake with its place."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launch_overrides import build_overrides

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.command_line.overrides import apply_overrides, parse_overrides
from worldsmith.config.load import load
from worldsmith.config.toml.recipe_toml import read_recipe_toml
from worldsmith.config.toml.toml_schema import toml_fields
from worldsmith.config.tree.references import resolve

JOB = '[job]\nexperiment = "small"\n'
VLM = '[job]\ntask = "vlm"\nexperiment = "small_vlm"\n'

DROPPED = None
TABLE: dict[str, tuple[Any, str | None, str | None]] = {
    # TOML key: documented default, tree path for vfm, tree path for vlm ("=" the same as the key)
    "job.task": ("vfm", "=", "="),
    "job.experiment": ("", "=", "="),
    "job.project": ("", "=", "="),
    "job.group": ("", "=", "="),
    "job.name": ("", "=", "="),
    "job.folder": ("", "=", "="),
    "job.resume_newest": (False, "=", "="),
    "job.wandb_mode": ("disabled", "=", "="),
    "model.max_num_tokens_after_packing": (13312, "model.config.max_num_tokens_after_packing", DROPPED),
    "model.joint_attn_implementation": ("two_way", "model.config.joint_attn_implementation", DROPPED),
    "model.attn_implementation": ("cosmos", DROPPED, "model.config.policy.attn_implementation"),
    "model.lora_enabled": (False, "model.config.lora_enabled", "model.config.lora_enabled"),
    "model.lora_rank": (16, "model.config.lora_rank", "model.config.lora_rank"),
    "model.lora_alpha": (32, "model.config.lora_alpha", "model.config.lora_alpha"),
    "model.lora_target_modules": (
        "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen",
        "model.config.lora_target_modules",
        "model.config.lora_target_modules",
    ),
    "model.precision": ("bfloat16", "model.config.precision", "model.config.precision"),
    "model.ema.enabled": (True, "model.config.ema.enabled", "model.config.ema.enabled"),
    "model.ema.rate": (0.1, "model.config.ema.rate", "model.config.ema.rate"),
    "model.ema.iteration_shift": (0, "model.config.ema.iteration_shift", "model.config.ema.iteration_shift"),
    **{
        f"model.parallelism.{key}": (default, f"model.config.parallelism.{key}", f"model.config.parallelism.{key}")
        for key, default in [
            ("data_parallel_shard_degree", -1),
            ("data_parallel_replicate_degree", 1),
            ("context_parallel_shard_degree", 1),
            ("cfg_parallel_shard_degree", 1),
            ("fsdp_master_dtype", "float32"),
        ]
    },
    "model.compile.enabled": (False, "model.config.compile.enabled", "model.config.compile.enabled"),
    "model.compile.compile_dynamic": (
        True,
        "model.config.compile.compile_dynamic",
        "model.config.compile.compile_dynamic",
    ),
    **{
        f"model.activation_checkpointing.{key}": (
            default,
            f"model.config.activation_checkpointing.{key}",
            f"model.config.activation_checkpointing.{key}",
        )
        for key, default in [
            ("mode", "full"),
            ("save_ops_regex", ["fmha"]),
            ("preserve_rng_state", True),
            ("determinism_check", "default"),
        ]
    },
    "model.tokenizer.vae_path": (
        "pretrained/tokenizers/video/wan2pt2/Wan2.2_VAE.pth",
        "model.config.tokenizer.vae_path",
        DROPPED,
    ),
    "model.backbone.model_name": ("???", DROPPED, "model.config.policy.backbone.model_name"),
    "model.backbone.safetensors_path": ("???", DROPPED, "model.config.policy.backbone.safetensors_path"),
    "optimizer.betas": ([0.9, 0.99], "=", "="),
    "optimizer.eps": (1e-8, "=", DROPPED),
    "optimizer.fused": (True, "=", "="),
    "optimizer.keys_to_select": ([], "=", "="),
    "optimizer.lr": (2e-4, "=", "="),
    "optimizer.lr_multipliers": ({}, "=", "="),
    "optimizer.weight_decay": (0.0, "=", "="),
    "scheduler.cycle_lengths": ([20000], "=", "="),
    "scheduler.f_max": ([1.0], "=", "="),
    "scheduler.f_min": ([0.0], "=", "="),
    "scheduler.f_start": ([1e-6], "=", "="),
    "scheduler.verbosity_interval": (0, "=", DROPPED),
    "scheduler.warm_up_steps": ([100], "=", "="),
    "trainer.distributed_parallelism": ("fsdp", "=", "="),
    "trainer.grad_accum_iter": (1, "=", "="),
    "trainer.logging_iter": (50, "=", "="),
    "trainer.max_iter": (500, "=", "="),
    "trainer.callbacks.compile_tokenizer.enabled": (True, "=", DROPPED),
    "trainer.callbacks.compile_tokenizer.compile_after_iterations": (3, "=", DROPPED),
    "trainer.callbacks.compile_tokenizer.warmup_resolutions": (None, "=", DROPPED),
    "trainer.callbacks.grad_clip.clip_norm": (1.0, "=", "="),
    "trainer.callbacks.grad_clip.force_finite": (True, "=", "="),
    "checkpoint.keys_to_skip_loading": ([], "=", "="),
    "checkpoint.load_path": ("???", "=", "="),
    "checkpoint.save_iter": (100, "=", "="),
    "dataloader_train.max_samples_per_batch": (None, "=", "="),
    "dataloader_train.max_sequence_length": (None, "=", "="),
    "dataloader_train.max_caption_tokens": (None, "=", DROPPED),
    "dataloader_train.seed": (42, "=", DROPPED),
    "custom": ({}, "=", "="),
}
EXAMPLES: dict[Any, Any] = {int: 7, float: 0.5, bool: True, str: "text", list[str]: ["x"], list[float]: [0.5, 0.5]}


def save(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def test_the_schema_has_every_documented_key_with_its_default_and_a_doc() -> None:
    assert {".".join(entry.path): entry.default for entry in toml_fields()} == {
        key: row[0] for key, row in TABLE.items()
    }
    assert all(entry.doc.endswith(".") for entry in toml_fields())


@pytest.mark.parametrize("key", [key for key in TABLE if key not in ("job.task", "job.experiment", "custom")])
@pytest.mark.parametrize("task", ["vfm", "vlm"])
def test_every_key_lands_where_the_table_says(key: str, task: str) -> None:
    section, _, rest = key.partition(".")
    table: dict[str, Any] = {"job": {"task": task, "experiment": "e"}}
    table.setdefault(section, {}).update(nested(rest, 1))
    target = TABLE[key][1 if task == "vfm" else 2]
    words = [word for word in build_overrides(table)[2:] if word != "job={}"]
    assert words == ([] if target is DROPPED else [f"{key if target == '=' else target}=1"])


def test_the_override_list_has_the_documented_order_and_quoting() -> None:
    table = tomllib.loads(
        """
        [optimizer]
        lr = 1e-5
        eps = 1.0e-8
        betas = [0.9, 0.95]
        keys_to_select = ["moe_gen", "a b"]
        fused = true
        [optimizer.lr_multipliers]
        "a.b" = 5.0
        [model]
        lora_target_modules = "q,k"
        [model.ema]
        [job]
        experiment = "vision"
        task = "vfm"
        name = "my run"
        group = "a-b+c.d_e%f"
        [checkpoint]
        load_path = "???"
        save_iter = 0
        [custom]
        x = 1
        """
    )
    assert build_overrides(table) == [
        "--",
        "experiment=vision",
        "optimizer.lr=1e-05",
        "optimizer.eps=1e-08",
        "optimizer.betas=[0.9,0.95]",
        "optimizer.keys_to_select=['moe_gen','a b']",
        "optimizer.fused=true",
        'optimizer.lr_multipliers."a.b"=5.0',
        "model.config.lora_target_modules='q,k'",
        "model.config.ema={}",
        "job.name='my run'",
        "job.group=a-b+c.d_e%f",
        "checkpoint.save_iter=0",
    ]
    assert build_overrides({"job": {"experiment": "e"}}) == ["--", "experiment=e", "job={}"]
    assert build_overrides({"job": {"experiment": "e", "name": None}})[2] == "job.name=null"


@pytest.mark.parametrize(
    ("job", "words"), [({}, "[job].experiment is required"), ({"experiment": "e", "task": "x"}, "['vfm', 'vlm']")]
)
def test_the_override_list_needs_an_experiment_and_a_known_task(job: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match="mistake") as caught:
        build_overrides({"job": job})
    assert words in str(caught.value)


FULL = """
[job]
experiment = "small"
name = "123"
[model]
precision = "float32"
[model.ema]
rate = 0.2
[model.tokenizer]
vae_path = "it's ~/x#1, [a]"
[optimizer]
lr = 1
keys_to_select = ["null", "true", "1", "x=y"]
[optimizer.lr_multipliers]
"a.b" = 5.0
tail = 3
[trainer]
max_iter = 30
[trainer.callbacks.grad_clip]
clip_norm = 0.1
"""


def test_the_file_changes_what_it_names_and_keeps_the_rest_of_the_recipe(tmp_path: Path, t: ModuleType) -> None:
    tree = load(save(tmp_path, FULL)).tree
    expected = get_recipe("small")
    expected.job.experiment = "small"
    expected.job.name = "123"
    expected.model.config.precision = "float32"
    expected.model.config.ema.rate = 0.2
    expected.model.config.tokenizer.vae_path = "it's ~/x#1, [a]"
    expected.optimizer.lr = 1.0
    expected.optimizer.keys_to_select = ["null", "true", "1", "x=y"]
    expected.optimizer.lr_multipliers = {"head": 2.0, "a.b": 5.0, "tail": 3.0}
    expected.trainer.max_iter = 30
    expected.scheduler.cycle_lengths = [30]
    expected.trainer.callbacks["grad_clip"].clip_norm = 0.1
    assert tree == expected


def test_the_override_words_of_a_file_give_the_same_tree_as_the_file(tmp_path: Path) -> None:
    text = FULL.replace("it's ~/x#1, [a]", "/data/vae")
    words = build_overrides(tomllib.loads(text))
    tree = get_recipe("small")
    problems: list[Any] = []
    apply_overrides(tree, parse_overrides(words[2:], problems), problems, [], "vfm")
    tree.job.experiment = "small"
    assert not problems
    assert resolve(tree) == load(save(tmp_path, text)).tree


def test_keys_without_effect_for_the_task_are_warnings(tmp_path: Path) -> None:
    text = VLM + "[optimizer]\neps = 1e-6\n[model]\nlora_rank = 4\n[model.tokenizer]\nvae_path = 'x'\n"
    loaded = load(save(tmp_path, text))
    tree, warnings = loaded.tree, loaded.warnings
    assert tree.model.config.lora_rank == 4
    assert tree.optimizer.eps == 1e-8
    assert [warning.split(": ")[-1] for warning in warnings] == [
        "optimizer.eps has no effect for task 'vlm'",
        "model.tokenizer.vae_path has no effect for task 'vlm'",
    ]
    assert "run.toml:5" in warnings[0]


def test_the_backbone_of_a_reasoner_is_remapped_and_its_caps_are_not(tmp_path: Path) -> None:
    text = (
        VLM + "[dataloader_train]\nmax_samples_per_batch=2\nmax_sequence_length=9\n[model.backbone]\nmodel_name='q'\n"
    )
    tree = load(save(tmp_path, text)).tree
    assert (tree.dataloader_train.max_samples_per_batch, tree.dataloader_train.max_sequence_length) == (2, 9)
    assert tree.model.config.policy.backbone.model_name == "q"


def test_custom_is_verbatim(tmp_path: Path) -> None:
    text = (
        JOB + '[custom]\nday = 1979-05-27\nref = "${nothing.here}"\nnone = "???"\n[[custom.items]]\na = {b = [1, {}]}\n'
    )
    tree = load(save(tmp_path, text)).tree
    day = datetime.date(1979, 5, 27)
    assert tree.custom == {"day": day, "ref": "${nothing.here}", "none": "???", "items": [{"a": {"b": [1, {}]}}]}
    assert load(save(tmp_path, JOB)).tree.custom == {}


def test_tail_overrides_win_over_the_file_in_both_spellings(tmp_path: Path) -> None:
    path = save(tmp_path, FULL)
    tree = load(path, ["--", "", "trainer.max_iter=7", "model.ema.rate=0.3", "model.config.lora_rank=2"]).tree
    assert (tree.trainer.max_iter, tree.scheduler.cycle_lengths) == (7, [7])
    assert (tree.model.config.ema.rate, tree.model.config.lora_rank) == (0.3, 2)
    assert load(path, ["trainer.max_iter=7"]).tree.trainer.max_iter == 7


def test_another_recipe_can_be_chosen_on_the_command_line(tmp_path: Path) -> None:
    tree = load(save(tmp_path, '[job]\nexperiment = "x"\n'), ["experiment=small"]).tree
    assert tree.job.experiment == "small"
    assert tree.optimizer.lr_multipliers == {"head": 2.0}


def test_a_missing_value_counts_as_left_out_for_any_key(tmp_path: Path) -> None:
    tree = load(save(tmp_path, JOB + '[optimizer]\nlr = "???"\n[checkpoint]\nload_path = "???"\n')).tree
    assert (tree.optimizer.lr, tree.checkpoint.load_path) == (2e-4, None)


def test_all_mistakes_of_all_stages_come_in_one_report_with_their_places(tmp_path: Path) -> None:
    text = """[job]
experiment = "small"
wandb_mode = "banana"
[optimizer]
lrr = 1e-4
betas = [0.9, "x"]
[scheduler]
f_max = [1.0, 2.0]
[trainr]
max_iter = 3
[checkpoint]
load_path = "${oc.env:WS_NOT_SET}"
max_iter = 5
save_iter = "3"
[model.ema]
enabled = "False"
"""
    path = save(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, ["optimizer.lr=fast", "optimizer.wieght_decay=1", "=3"])
    report = str(caught.value)
    found = {(p.path, p.line, p.column) for p in caught.value.problems if p.file == str(path)}
    assert found == {
        ("job.wandb_mode", 3, 14),
        ("optimizer.lrr", 5, 1),
        ("optimizer.betas[1]", 6, 15),
        ("scheduler", 8, 9),
        ("trainr", 9, 2),
        ("checkpoint.load_path", 12, 13),
        ("checkpoint.max_iter", 13, 1),
        ("checkpoint.save_iter", 14, 13),
        ("model.ema.enabled", 16, 11),
    }
    for words in (
        "did you mean 'optimizer.lr'?",
        "did you mean 'trainer'?",
        "did you mean 'trainer.max_iter'?",
        "one of 'online', 'offline', 'disabled', found 'banana'",
        "'WS_NOT_SET' is not set",
        "did you mean 'optimizer.weight_decay'?",
        "expected a number, found 'fast' (text)",
        "expected true or false, found 'False' (text)",
        '   6 | betas = [0.9, "x"]\n       |               ^^^',
        "12 mistakes",
    ):
        assert words in report


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "[job].experiment is required"),
        ('[job]\nexperiment = "smal"\n', 2, "did you mean 'small'?"),
        ('[job]\nexperiment = "small_vlm"\n', 2, "has task 'vlm', but the file has no task, which means 'vfm'"),
        ('[job]\nexperiment = "small"\ntask = "vlm"\n', 3, "has task 'vfm', but the file has task 'vlm'"),
        ('[job]\nexperiment = "small"\ntask = "video"\n', 3, "one of 'vfm', 'vlm'"),
        (JOB + "upload_reproducible_setup = true\n", 3, "not uploaded"),
        (JOB + "x = \n", 3, "not valid TOML"),
        (JOB + "[job]\n", 3, "not valid TOML"),
        (JOB + "[optimizer]\nlr = { a = 1 }\n", 4, "expected a number, found a table"),
        ('optimizer = 3\n[job]\nexperiment = "small"\n', 1, "expected a section"),
        (JOB + '[model.backbone]\nmodel_name = "${x"\n', None, None),
        (JOB + "[trainer]\nmax_iter = 1979-05-27\n", 4, "(date)"),
        (JOB + "custom = 3\n", 3, "has no key 'custom'"),
        ('[job]\nexperiment = "${oc.env:X}"\n', 2, "before references are resolved"),
        (JOB + f"[trainer]\nmax_iter = {'9' * 5000}\n", None, "not valid TOML"),
        ("a = " + "[" * 5000, 1, "nested more than 64 levels deep"),
    ],
)
def test_single_mistakes(tmp_path: Path, text: str, line: int | None, words: str | None) -> None:
    path = save(tmp_path, text)
    if words is None:
        load(path)
        return
    with pytest.raises(ConfigError) as caught:
        load(path)
    problem = caught.value.problems[0]
    assert words in str(caught.value)
    assert (problem.file, problem.line) == (str(path), line)


def test_a_key_that_the_recipe_has_no_place_for_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, JOB + "[trainer.callbacks.grad_clip]\nclip_norm = 1.0\n")
    real = get_recipe("small")
    del real.trainer.callbacks["grad_clip"]
    monkeypatch.setattr("worldsmith.config.toml.recipe_toml.get_recipe", lambda name: real)
    with pytest.raises(ConfigError, match=r"run.toml:4:1: trainer.callbacks.grad_clip.clip_norm: this key sets '"):
        load(path)


def test_files_that_are_no_config_are_refused(tmp_path: Path) -> None:
    big, latin = tmp_path / "big.toml", tmp_path / "latin.toml"
    with big.open("wb") as file:
        file.truncate(100 * 2**20)
    latin.write_bytes(b'[job]\nname = "caf\xe9"\n')
    for path, words in [
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "a folder"),
        (big, "100 MiB"),
        (latin, "latin.toml:2:12: the byte 0xe9 is not UTF-8"),
        (Path("/dev/null"), "not a regular file"),
    ]:
        with pytest.raises(ConfigError, match=words):
            read_recipe_toml(path, [])


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode() + b"x = 1\r\n")
    with pytest.raises(ConfigError, match=r"w.toml:3:1: job.x"):
        load(str(path))
