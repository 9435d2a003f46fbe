"""Training specs in the shapes of Cosmos-RL and TAO: the run that each leads to."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from train_specs import COOKBOOK, TEMPLATE, problems_of, values

from worldsmith.config.errors import ConfigError
from worldsmith.config.tree.paths import parse_path
from worldsmith.training.run_folder import run_path


def test_a_cookbook_spec_leads_to_its_run(read: Any, data: Path) -> None:
    loaded = read(COOKBOOK)
    expected = {
        "job.project": "cosmos_reason2",
        "job.name": "",
        "job.group": "its",
        "job.folder": "outputs/its",
        "job.wandb_mode": "online",
        "model.config.policy.backbone.model_name": "nvidia/Cosmos-Reason2-2B",
        "model.config.lora_enabled": False,
        "model.config.compile.enabled": False,
        "model.config.activation_checkpointing.mode": "full",
        "optimizer.lr": 2e-5,
        "optimizer.eps": 1e-6,
        "scheduler.cycle_lengths": [9],
        "scheduler.warm_up_steps": [0],
        "trainer.max_iter": 9,  # 112 samples are 3.5 steps of 32
        "trainer.grad_accum_iter": 32,
        "trainer.run_validation": False,
        "checkpoint.save_iter": 20,
        "checkpoint.keep_latest_k": 5,
        "dataloader_train.max_samples_per_batch": 1,
        "dataloader_train.max_sequence_length": 32769,
        "dataloader_train.max_sample_tokens": 32768,
        "dataloader_train.num_workers": 4,
        "dataloader_train.dataset.path": f"{data}/annotations.json",
        "dataloader_train.dataset.media_root": f"{data}/clips",
        "dataloader_train.dataset.system_prompt": "You are a helpful assistant.",
        "dataloader_train.dataset.video_fps": "optional",
        "dataloader_train.processor.media.nframes": 8,
        "dataloader_train.processor.media.fps": None,
    }
    assert dict(zip(expected, values(loaded, *expected))) == expected
    assert type(loaded.tree.scheduler).__qualname__ == "LambdaCosine.Config"


def test_every_value_knows_the_line_that_it_comes_from(read: Any) -> None:
    loaded = read(COOKBOOK, "train.optm_weight_decay=0.1")
    origin = {path: str(loaded.provenance[parse_path(path)]) for path in ("optimizer.lr", "optimizer.weight_decay")}
    assert origin == {"optimizer.lr": "spec.toml:9", "optimizer.weight_decay": "override train.optm_weight_decay=0.1"}
    assert str(loaded.provenance[("optimizer", "eps")]) == "spec.toml (omitted: train.epsilon)"
    assert str(loaded.provenance[("trainer", "max_iter")]) == "spec.toml:16"


def test_dead_keys_are_named(read: Any) -> None:
    text = COOKBOOK.replace("compile = false", "compile = false\nvalidation_step = 5\nvalidation_batch_per_replica = 2")
    warned = " ".join(read(text, "policy.parallelism.cp_rotate_method=p2p").warnings)
    for key in ("enable_validation", "validation_step", "validation_batch_per_replica", "cp_rotate_method"):
        assert f"{key} is dead: no code ever read it" in warned


def test_the_usual_words_of_the_skill(read: Any, data: Path) -> None:
    block = (
        *("policy.model_max_length=81920", "dp_shard_size=4", "dp_replicate_size=1", "num_epochs=1", "batch_size=32"),
        *("policy.lora.r=16", "policy.lora.lora_alpha=256", "policy.lora.lora_dropout=0.05", "learning_rate=2e-5"),
        *("train.optm_impl=fused", "train.deterministic=true", "train.ckpt.save_freq_in_epoch=1", "mini_batch=1"),
        *("train.ckpt.max_keep=1", "train.train_policy.dataset.test_size=0", "validation.freq_in_epoch=1"),
        *(f"custom.val_dataset.annotation_path={data}/annotations.json", "validation.batch_size=1"),
        *("custom.system_prompt='You are a helpful assistant.'", "policy.model_name_or_path=hf_model://a/b"),
    )
    found = problems_of(read, TEMPLATE, *block, suffix="yaml")
    assert found == {"train.train_batch_per_replica": "train.train_batch_per_replica=28"}  # 112 samples on 4 processes
    loaded = read(TEMPLATE, *block, "batch_size=28", suffix="yaml")
    assert values(loaded, "trainer.max_iter", "checkpoint.save_iter") == [1, 1]
    assert values(loaded, *(f"model.config.lora_{name}" for name in ("rank", "alpha", "dropout"))) == [16, 256, 0.05]
    assert values(loaded, "model.config.parallelism.data_parallel_shard_degree", "trainer.grad_accum_iter") == [4, 28]
    assert values(loaded, "dataloader_val.dataset.system_prompt") == ["You are a helpful assistant."]
    assert values(loaded, "model.config.policy.backbone.model_name") == ["a/b"]


def test_a_missing_type_means_sft_and_is_said(read: Any) -> None:
    loaded = read(COOKBOOK.replace('type = "sft"\n', ""))
    assert any("train.train_policy.type is approximated: it is omitted: sft is used" in w for w in loaded.warnings)
    assert loaded.tree == read(COOKBOOK).tree
    assert not any("train_policy.type" in warning for warning in read(COOKBOOK).warnings)


STEPS = [
    (("epoch=1", "train_batch_per_replica=8"), (), 14),
    (("epoch=3",), (), 9),
    (("epoch=3",), ("train.train_policy.dataloader_drop_last=false",), 12),
    (("epoch=3",), ("policy.parallelism.dp_shard_size=2",), 3),
    (("epoch=2", "train_batch_per_replica=10"), ("dp_shard_size=4", "dp_replicate_size=3"), 2),  # 112 of 120
    (("epoch=30", "max_num_steps=12"), (), 12),
    (("epoch=1", "max_num_steps=12"), (), 3),
]


@pytest.mark.parametrize(("train", "words", "steps"), STEPS)
def test_passes_become_steps_of_all_processes(
    read: Any, train: tuple[str, ...], words: tuple[str, ...], steps: int
) -> None:
    loaded = read(COOKBOOK, *(f"train.{word}" for word in train), *words)
    assert values(loaded, "trainer.max_iter", "scheduler.cycle_lengths") == [steps, [steps]]


def test_all_processes_of_the_start_count_where_the_spec_leaves_it_open(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(COOKBOOK, "dp_shard_size=-1").tree.trainer.max_iter == 9
    monkeypatch.undo()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert read(COOKBOOK, "dp_shard_size=-1").tree.trainer.max_iter == 3


def test_passes_over_data_that_cannot_be_read_are_refused_and_steps_are_not(read: Any) -> None:
    word = "custom.dataset.annotation_path=/nowhere/annotations.json"
    assert "train.max_num_steps=N" in problems_of(read, COOKBOOK, word)["custom.dataset.annotation_path"]
    assert read(COOKBOOK, word, "train.max_num_steps=7").tree.trainer.max_iter == 7
    later = ("train.max_num_steps=7", "train.ckpt.save_freq_in_epoch=1")
    assert set(problems_of(read, COOKBOOK, word, *later)) == {later[1].partition("=")[0]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("[]", "has 0 records, but none can be used"),
        ('[{"id": "a", "conversations": 1}]', "none can be used, the first: "),
        ("{", "JSON"),
    ],
)
def test_data_without_a_usable_record_is_said(read: Any, tmp_path: Path, records: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(records)
    with pytest.raises(ConfigError, match=message) as error:
        read(COOKBOOK, f"custom.dataset.annotation_path={tmp_path}/bad.json")
    assert [problem.path for problem in error.value.problems] == ["custom.dataset.annotation_path"]


def test_records_are_counted_whether_they_state_a_rate_or_not(read: Any, data: Path, tmp_path: Path) -> None:
    records = json.loads((data / "annotations.json").read_text())
    for record in records:
        del record["video_fps"]
    (tmp_path / "unstated.json").write_text(json.dumps(records))
    words = ("~custom.dataset", f"custom.train_dataset.annotation_path={tmp_path}/unstated.json")
    loaded = read(COOKBOOK, *words)
    assert (loaded.tree.trainer.max_iter, loaded.tree.dataloader_train.dataset.video_fps) == (9, "require")


NAMES = [
    ("hf_model://nvidia/Cosmos-Reason2-8B", "nvidia/Cosmos-Reason2-8B"),
    ("nvidia/Cosmos-Reason2-8B", "nvidia/Cosmos-Reason2-8B"),
    ("/models/reason2", "/models/reason2"),
    ("hf_model://Cosmos-Reason2-8B", None),
    ("hf_model://", None),
    ("ngc://nvidia/tao/model", None),
    ("''", None),
]


@pytest.mark.parametrize(("given", "expected"), NAMES)
def test_names_of_models(read: Any, given: str, expected: str | None) -> None:
    word = f"policy.model_name_or_path={given}"
    if expected is None:
        assert list(problems_of(read, COOKBOOK, word)) == ["policy.model_name_or_path"]
        return
    assert values(read(COOKBOOK, word), "model.config.policy.backbone.model_name") == [expected]
    revised = read(COOKBOOK, word, "policy.model_revision=main")
    assert values(revised, "model.config.policy.backbone.model_name") == [f"{expected}@main"]


def test_rates_by_module_keep_their_ratio(read: Any) -> None:
    loaded = read(COOKBOOK, "train.optm_lr={global: 1e-5, model.visual.merger: 2e-4, model.visual: 5e-6}")
    assert loaded.tree.optimizer.lr == 1e-5
    assert list(loaded.tree.optimizer.lr_multipliers.items()) == [
        ("model.visual.merger.", pytest.approx(20)),
        ("model.visual.", pytest.approx(0.5)),
    ]
    assert read(COOKBOOK, "train.optm_lr=[3e-6]").tree.optimizer.lr == 3e-6


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("{global: 1e-6, model.visual: 2e-6, model.visual.merger: 3e-6}", ["model.visual.merger.", "model.visual."]),
        ("{global: 1e-6, model: 2e-6, visual: 3e-6, lm_head: 4e-6}", ["model.visual.", "model.", "lm_head."]),
        ("{global: 1e-6, model.language_model.layers.1: 2e-6}", ["model.language_model.layers.1."]),
    ],
)
def test_the_rate_of_the_deepest_module_decides(read: Any, table: str, expected: list[str]) -> None:
    multipliers = read(COOKBOOK, f"train.optm_lr={table}").tree.optimizer.lr_multipliers
    assert list(multipliers) == expected


def test_adapters(read: Any) -> None:
    words = ("policy.lora={r: 16, lora_alpha: 32, target_modules: all-linear}", "policy.lora.use_rslora=true")
    loaded = read(COOKBOOK, *words)
    config = loaded.tree.model.config
    assert (config.lora_enabled, config.lora_rank, config.lora_alpha) == (True, 16, 128)
    assert config.lora_target_modules == "all-linear"


def test_the_scale_of_rslora_need_not_be_a_whole_number(read: Any) -> None:
    """Rank-stabilized LoRA scales by lora_alpha / sqrt(r), and the run by its lora_alpha / r: 16 * sqrt(8) / 8."""
    config = read(COOKBOOK, "policy.lora={r: 8, lora_alpha: 16, use_rslora: true, target_modules: [q_proj]}").tree
    assert config.model.config.lora_alpha / 8 == pytest.approx(16 / math.sqrt(8))


def test_saving(read: Any) -> None:
    words = ("train.ckpt.max_keep=-1", "train.ckpt.save_freq_in_epoch=1", "train.ckpt.save_mode=sync")
    loaded = read(COOKBOOK, *words)
    names = ("save_iter", "keep_latest_k", "async_save")
    assert [getattr(loaded.tree.checkpoint, name) for name in names] == [3, None, False]  # 3.5 steps an epoch
    assert read(COOKBOOK, "train.ckpt.enable_checkpoint=false").tree.checkpoint.save_iter == 9


FOLDERS = [
    ((), ("outputs/its", "")),
    (("~train.output_dir",), ("", "")),
    (("train.output_dir=/big/disk",), ("/big/disk", "")),
    (("train.output_dir=/big/disk", "train.timestamp=20260101000000"), ("/big", "disk")),
    (("~train.output_dir", "results_dir=/results/job1"), ("/results/job1", "")),
    (("train.output_dir=output", "results_dir=/results/job1"), ("/results/job1/output", "")),
    (("train.output_dir=/results/job1", "results_dir=/results/job1"), ("/results/job1", "")),
    (("train.output_dir=/elsewhere", "results_dir=/results/job1"), ("/elsewhere", "")),
    (("train.output_dir=''",), ("", "")),
]


@pytest.mark.parametrize(("words", "expected"), FOLDERS)
def test_the_output_folder_is_where_a_run_lies(read: Any, words: tuple[str, ...], expected: tuple[str, str]) -> None:
    assert tuple(values(read(COOKBOOK, *words), "job.folder", "job.name")) == expected


def test_an_output_folder_of_an_object_store_is_refused(read: Any) -> None:
    assert list(problems_of(read, COOKBOOK, "train.output_dir=s3://bucket/out")) == ["train.output_dir"]


def test_two_specs_with_the_names_of_the_template_are_two_runs(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    text = COOKBOOK.replace("outputs/its", "output").replace('"its"', '"cosmos-rl"')
    first = run_path(read(text).tree.job)
    (first / "checkpoints/iter_000000005").mkdir(parents=True)
    (first / "checkpoints/latest_checkpoint.txt").write_text("iter_000000005")
    second = run_path(read(text, "train.optm_lr=1e-4").tree.job)
    assert second != first
    assert second.parent == first.parent == tmp_path / "output"
    assert run_path(read(text, "train.resume=true").tree.job) == first


def test_resuming_from_a_path_is_a_new_run(read: Any) -> None:
    loaded = read(COOKBOOK, "train.resume=/runs/a")
    assert values(loaded, "checkpoint.load_path", "checkpoint.load_training_state", "job.name") == ["/runs/a", True, ""]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "its"),
        (("logging.group_name=g",), "g/its"),
        (("logging.experiment_name=None",), "sft"),  # as in published specs
    ],
)
def test_names_are_those_of_the_tracker(read: Any, words: tuple[str, ...], expected: str) -> None:
    assert values(read(COOKBOOK, *words), "job.project", "job.group") == ["cosmos_reason2", expected]


REASON2, TAO = "nvidia/Cosmos-Reason2-2B", "custom.train_dataset"
DEFAULTS = [
    # model, table of the data, words -> (fps, nframes, max_pixels, total_pixels), what is reported
    (
        REASON2,
        "custom.dataset",
        ("~custom.vision",),
        (1.0, None, None, 2 * 30198988),
        "the data script of Cosmos-Reason2",
    ),
    (
        REASON2,
        "custom.dataset",
        ("policy.model_max_length=4096",),
        (None, 8, None, 2 * 3774873),
        "as in Cosmos-Reason2",
    ),
    (
        REASON2,
        "custom.dataset",
        ("custom.vision.total_pixels=1000000",),
        (None, 8, None, 2000000),
        "replaces it by 30198988",
    ),
    ("Qwen/Qwen3-VL-8B-Instruct", "custom.dataset", (), (None, 8, None, 2 * 30198988), "as in Cosmos-Reason2"),
    (REASON2, TAO, ("~custom.vision",), (1.0, None, 81920, None), "the data script of TAO and Cosmos-Reason1"),
    (REASON2, TAO, (), (None, 8, None, None), ""),
    (
        "nvidia/Cosmos-Reason1-7B",
        "custom.dataset",
        ("~custom.vision",),
        (1.0, None, 81920, None),
        "TAO and Cosmos-Reason1",
    ),
    ("nvidia/Cosmos-Reason1-7B", "custom.dataset", (), (None, 8, None, None), ""),
]


@pytest.mark.parametrize(("model", "table", "words", "expected", "text"), DEFAULTS)
def test_frames_and_pixels_that_are_left_out_are_those_of_the_data_script(
    read: Any, model: str, table: str, words: tuple[str, ...], expected: tuple[Any, ...], text: str
) -> None:
    loaded = read(COOKBOOK.replace("custom.dataset", table), f"policy.model_name_or_path={model}", *words)
    media = loaded.tree.dataloader_train.processor.media
    assert (media.fps, media.nframes, media.max_pixels, media.total_pixels) == expected
    assert media.video_limits == "qwen_vl_utils"
    assert text in loaded.report


def test_a_folder_says_of_which_network_its_model_is(read: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    loaded = read(COOKBOOK, f"policy.model_name_or_path={tmp_path}")
    assert loaded.tree.dataloader_train.processor.media.total_pixels == 2 * 30198988


def test_pixels_of_a_video_are_counted_otherwise_and_limits_of_fps_do_nothing_beside_nframes(read: Any) -> None:
    loaded = read(COOKBOOK, "custom.vision.total_pixels=3136000", "custom.vision.max_frames=16")
    media = loaded.tree.dataloader_train.processor.media
    assert (media.total_pixels, media.max_frames, media.nframes) == (6272000, None, 8)
    assert any("custom.vision.max_frames is dead" in warning for warning in loaded.warnings)


def test_the_cap_of_a_sample_stays_and_a_pack_has_room_for_as_many_of_that_length(read: Any) -> None:
    loaded = read(COOKBOOK, "mini_batch=4")
    names = ("max_sample_tokens", "max_sequence_length", "max_samples_per_batch")
    assert values(loaded, *(f"dataloader_train.{name}" for name in names)) == [32768, 4 * 32768 + 1, 4]
    assert not any("model_max_length" in warning for warning in loaded.warnings)
    assert "dataloader_train.max_sample_tokens = 32768" in loaded.report
    assert "a pack of 4 samples may have 131072 tokens" in loaded.report


def test_reading_ahead_without_readers_is_dead(read: Any) -> None:
    words = ("train.train_policy.dataloader_num_workers=0", "train.train_policy.dataloader_prefetch_factor=4")
    loaded = read(COOKBOOK, *words)
    assert any("prefetch_factor is dead" in warning for warning in loaded.warnings)
    assert read(COOKBOOK, words[1]).tree.dataloader_train.prefetch_factor == 4


def test_a_default_of_two_for_tensor_parallelism_is_said(read: Any) -> None:
    text = COOKBOOK.replace("tp_size = 1\n", "")
    assert any("tp_size is approximated: it is omitted" in warning for warning in read(text).warnings)
