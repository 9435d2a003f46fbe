"""The recipes of robot actions have the published values, and every key of their published files takes effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from published_files import PublishedFile, published_files
from recipe_environment import PLACES

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.declare.configurable import find
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.tree.difference import find_differences
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.references import resolve
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot import DroidJoints, DroidPoses, LiberoRobot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.families.cosmos3.network.architecture import edge, nano
from worldsmith.training.scheduler import LambdaLinear, multiplier
from worldsmith.training.trainer import Trainer

NAMES = ["action_policy_libero_nano", "action_policy_libero_all_nano", "action_policy_droid_nano",
         "action_fd_droid_posttrain"]  # fmt: skip
HEADS = ["action2llm", "llm2action", "action_modality_embed"]
TOWER = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]
SKIPPED = ["net_ema.", *HEADS]
TABLE: dict[str, tuple[Any, Any, Any, Any]] = {
    # path: (one LIBERO suite, all suites, DROID policy, DROID forward dynamics), as the published recipes take effect
    "model.config.precision": ("bfloat16",) * 4,
    "model.config.joint_attn_implementation": ("two_way",) * 4,
    "model.config.ema.enabled": (True,) * 4,
    "model.config.ema.rate": (0.1,) * 4,
    "model.config.ema.iteration_shift": (0,) * 4,
    "model.config.parallelism.data_parallel_shard_degree": (8,) * 4,
    "model.config.compile.enabled": (True,) * 4,
    "model.config.activation_checkpointing.mode": ("selective", "selective", "full", "selective"),
    "model.config.activation_checkpointing.save_ops_regex": (["fmha"],) * 4,
    "objective.video_distribution": ("waver",) * 4,
    "objective.shift.256": (3,) * 4,
    "objective.shift.480": (5,) * 4,
    "objective.shift.720": (10,) * 4,
    "objective.loss_scale": (10.0,) * 4,
    "objective.action_loss_weight": (10.0,) * 4,
    "objective.normalize_loss_by_active": (False,) * 4,
    "optimizer.lr": (5e-5, 5e-5, 2e-4, 1e-4),
    "optimizer.betas": ([0.9, 0.99],) * 4,
    "optimizer.eps": (1e-8,) * 4,
    "optimizer.weight_decay": (0.05,) * 4,
    "optimizer.keys_to_select": ([*TOWER, *HEADS],) * 4,
    "optimizer.lr_multipliers": (dict.fromkeys(HEADS, 5.0),) * 4,
    "scheduler.cycle_lengths": ([16000], [16000], [100000], [20000]),
    "scheduler.warm_up_steps": ([500], [500], [0], [0]),
    "scheduler.f_start": ([1e-6], [1e-6], [0.0], [0.0]),
    "scheduler.f_max": ([1.0], [1.0], [0.4], [0.4]),
    "scheduler.f_min": ([0.0],) * 4,
    "trainer.max_iter": (2000, 5000, 10000, 20000),
    "trainer.grad_accum_iter": (1,) * 4,
    "trainer.logging_iter": (50,) * 4,
    "trainer.seed": (42,) * 4,
    "trainer.max_consecutive_skipped": (100,) * 4,
    "trainer.callbacks.grad_clip.clip_norm": (1.0,) * 4,
    "trainer.callbacks.grad_clip.force_finite": (True,) * 4,
    "trainer.callbacks.compile_tokenizer.enabled": (False, False, True, True),
    "checkpoint.save_iter": (500, 500, 1000, 250),
    "checkpoint.keys_to_skip_loading": (SKIPPED, SKIPPED, SKIPPED, ["net_ema."]),
    "dataloader_train.max_samples_per_batch": (128, 128, 32, None),
    "dataloader_train.max_sequence_length": (None, None, None, 74000),
    "dataloader_train.num_workers": (4, 4, 16, 3),
    "dataloader_train.prefetch_factor": (4, 4, 2, 2),
    "dataloader_val": (None,) * 4,
    "job.project": ("cosmos3_action_libero", "cosmos3_action_libero", "cosmos3_action", "cosmos3_action_fd"),
    "job.group": ("action_sft",) * 4,
}
FILES = [
    file
    for file in published_files()
    if file.repository == "cosmos-framework" and file.name.startswith("action_") and "repro" not in file.name
]


def recipe(name: str) -> Trainer.Config:
    return cast(Trainer.Config, get_recipe(name))


def episodes(name: str) -> list[RobotDataset.Config]:
    dataset = cast(Any, recipe(name).dataloader_train).dataset
    return list(dataset.datasets.values()) if isinstance(dataset, ClipMix.Config) else [dataset]


@pytest.mark.parametrize("path", TABLE)
def test_values_are_the_published_ones(path: str) -> None:
    found = tuple(find(resolve(recipe(name)), tuple(path.split("."))) for name in NAMES)
    assert found == TABLE[path]
    assert [type(value) for value in found] == [type(value) for value in TABLE[path]]


def test_networks_are_the_released_tiers_with_action_heads() -> None:
    for name in (*NAMES, "action_policy_libero_edge"):
        expected = edge() if "edge" in name else nano()
        expected.action_gen = True
        assert cast(Any, recipe(name).model.config).network == expected
    assert (nano().max_action_dim, nano().num_embodiment_domains) == (64, 32)


@pytest.mark.parametrize(
    ("name", "robot", "windows", "val", "normalization", "paths"),
    [
        (NAMES[0], LiberoRobot, (16, "256", {"wam": 1.0}), (0.01, 0), "quantile_rot", ["LIBERO_ROOT"]),
        (NAMES[1], LiberoRobot, (16, "256", {"wam": 1.0}), (0.01, 0), "quantile_rot",
         [f"LIBERO_ROOT/libero_{suite}" for suite in ("spatial", "object", "goal", "10")]),
        (NAMES[2], DroidJoints, (32, "480", {"wam": 1.0}), (0.03, 42), "none", ["DROID_ROOT/success"]),
        (NAMES[3], DroidPoses, (16, "480", {"forward_dynamics": 1.0}), (0.03, 42), "none",
         ["DATASET_PATH/success", "DATASET_PATH/failure"]),
    ],
)  # fmt: skip
def test_data_are_the_published_ones(
    name: str, robot: Any, windows: tuple[Any, ...], val: tuple[float, int], normalization: str, paths: list[str]
) -> None:
    members = episodes(name)
    assert [member.path.replace("${oc.env:", "").replace("}", "") for member in members] == paths
    for member in members:
        assert type(member.robot) is robot.Config
        assert (member.steps, member.resolution, member.modes) == windows
        assert (member.split, member.val_fraction, member.split_seed) == ("train", *val)
        assert (member.robot.normalization, member.robot.clamp) == (normalization, False)
        assert (member.robot.rotation, member.robot.pose_delta) == ("rot6d", "frame_wise")
        assert bool(member.robot.state) == (robot is DroidJoints)
        assert (member.robot.viewpoint, member.prompt, member.cfg_dropout_rate) == ("concat_view", "json", 0.1)
        assert (member.history, member.max_idle, member.keep_ranges) == (0, 1.0, "")


def test_four_suites_have_equal_parts() -> None:
    mix = cast(Any, recipe(NAMES[1]).dataloader_train).dataset
    assert mix.weights == dict.fromkeys(mix.datasets, 1.0)


def test_learning_rates_of_the_schedules() -> None:
    """The published peaks: 5e-5 in LIBERO, 8e-5 in DROID, with 7.2e-5 at its last step, and 4e-5 down to 0."""
    rates = []
    for name, step in zip(NAMES, (500, 500, 10000, 20000)):
        config = recipe(name)
        assert isinstance(config.scheduler, LambdaLinear.Config)
        rates += [config.optimizer.lr * multiplier(config.scheduler, n) for n in (0, step)]
    assert rates == pytest.approx([5e-11, 5e-5, 5e-11, 5e-5, 8e-5, 7.2e-5, 4e-5, 0.0])


def test_there_are_four_published_files() -> None:
    assert sorted(file.data["job"]["experiment"] for file in FILES) == sorted(NAMES)


def set_variables(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    for place in PLACES:
        monkeypatch.setenv(place, place.lower())
    monkeypatch.setenv("WORLD_SIZE", str(ranks))


OTHER = {
    "job/wandb_mode": "offline",
    "model/precision": "float32",
    "model/parallelism/data_parallel_shard_degree": 4,
    "model/activation_checkpointing/mode": "none",
    "model/activation_checkpointing/save_ops_regex": ["matmul", "fmha"],
    "model/tokenizer/vae_path": "${oc.env:LTX_PATH}",
    "checkpoint/load_path": "${oc.env:WAN_PATH}",
    "trainer/callbacks/compile_tokenizer/warmup_resolutions": ["480", "720"],
}
"""Key of a published file → another valid value, where `other_value` cannot know one."""


def other_value(key: str, value: Any) -> Any:
    """Returns another valid value for a key of a published file."""
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, list):
        return [other_value(key, item) for item in value]
    if isinstance(value, bool):
        return not value
    return f"{value}_changed" if isinstance(value, str) else value * 2


def load_file(file: PublishedFile, folder: Path, **changed: Any) -> Trainer.Config:
    facts = {**file.facts, **changed}
    return cast(Trainer.Config, load(str(replace(file, facts=facts).write(folder))).tree)


def config_path(key: str) -> tuple[str, ...]:
    """Returns the path in the config of a key of a published file."""
    path = key.split("/")
    return ("model", "config", *path[1:]) if path[0] == "model" else tuple(path)


def expected_value(value: Any) -> Any:
    """Returns the value that appears in the config: a variable is replaced by its content from `set_variables`."""
    return value[9:-1].lower() if str(value).startswith("${oc.env:") else value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_key_of_a_published_file_takes_effect(
    file: PublishedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key gets another value, too, and then the config differs in exactly these values: a key that is ignored,
    although the recipe has the same value, would be found."""
    set_variables(monkeypatch, 8 * file.facts["model/parallelism/data_parallel_replicate_degree"])
    tree = load_file(file, tmp_path)
    for key, value in file.facts.items():
        assert find(tree, config_path(key)) == expected_value(value), key
    chosen = {"job/task", "job/experiment"}
    other = {key: other_value(key, value) for key, value in file.facts.items() if key not in chosen}
    assert [key for key, value in other.items() if value == file.facts[key]] == []
    changed = load_file(file, tmp_path, **other)
    found = {difference.path for difference in find_differences(tree, changed)}
    assert found == {config_path(key) for key in other}
    for key, value in other.items():
        assert find(changed, config_path(key)) == expected_value(value), key


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_keys_that_choose_the_recipe_are_not_ignored(
    file: PublishedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, 8 * file.facts["model/parallelism/data_parallel_replicate_degree"])
    with pytest.raises(ConfigError, match=r"task.*vlm"):
        load_file(file, tmp_path, **{"job/task": "vlm"})
    with pytest.raises(ConfigError, match="action_policy_nowhere"):
        load_file(file, tmp_path, **{"job/experiment": "action_policy_nowhere"})
    name = NAMES[0] if file.facts["job/experiment"] == NAMES[3] else NAMES[3]
    found = load_file(file, tmp_path, **{"job/experiment": name})
    assert cast(Any, found.dataloader_train).dataset == cast(Any, load(name).tree).dataloader_train.dataset


def test_what_the_data_side_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, 8)
    for key in ("use_image_augmentation", "use_filter_dict", "action_space"):
        with pytest.raises(ConfigError, match=f"has no key '{key}'"):
            load(NAMES[2], [f"dataloader_train.dataset.{key}=true"])


def test_the_name_of_the_published_file_is_a_name_of_the_recipe() -> None:
    assert find_recipe("action_policy_libero_10_nano").name == NAMES[0]


def differences(first: str, second: str) -> set[str]:
    return {format_path(found.path) for found in find_differences(recipe(first), recipe(second))}


def test_variants_differ_where_they_must() -> None:
    own = {"job.experiment", "job.name", "objective.normalize_loss_by_active"}
    data = {f"dataloader_train.dataset.datasets.{part}.robot.{key}" for part in ("success", "failure")
            for key in ("normalization", "statistics", "clamp")}  # fmt: skip
    for name, modes in (("id", {"inverse_dynamics"}), ("joint", {"wam", "forward_dynamics", "inverse_dynamics"})):
        found = differences(NAMES[3], f"action_{name}_droid_nano")
        assert {path for path in found if ".modes" not in path} == own | data
        assert [set(member.modes) for member in episodes(f"action_{name}_droid_nano")] == [modes] * 2
    lora = recipe("action_fd_droid_lora")
    assert not differences(NAMES[3], "action_fd_droid_lora") & {"dataloader_train.dataset.datasets.success.modes"}
    assert (lora.optimizer.keys_to_select, lora.optimizer.lr_multipliers) == (["lora_"], {})
    assert not set(HEADS) & set(lora.checkpoint.keys_to_skip_loading)  # they are not trained, so they are needed
