"""Training specs in the shapes of Cosmos-RL and TAO: the run that each leads to, or all that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worldsmith.config.errors import ConfigError
from worldsmith.config.load import load
from worldsmith.config.specs.names import leaf_keys
from worldsmith.config.specs.spec_file import read_spec
from worldsmith.config.specs.train.aliases import RL_KEYS
from worldsmith.config.specs.train.draft import has_spec_keys
from worldsmith.config.specs.train.form import FORM
from worldsmith.config.specs.translation import translate
from worldsmith.config.tree.access import find
from worldsmith.config.tree.paths import parse_path
from worldsmith.config.write.spec_template import spec_template

SAMPLES = 112

COOKBOOK = """\
redis = "12800"
[custom.dataset]
annotation_path = "{data}/annotations.json"
media_path = "{data}/clips"
system_prompt = "You are a helpful assistant."
[custom.vision]
nframes = 8
[train]
optm_lr = 2e-5
output_dir = "outputs/its"
optm_warmup_steps = 0
optm_decay_type = "cosine"
train_batch_per_replica = 32
enable_validation = false
compile = false
epoch = 3
[policy]
model_name_or_path = "nvidia/Cosmos-Reason2-2B"
model_max_length = 32768
[logging]
logger = ['console', 'wandb']
project_name = "cosmos_reason2"
experiment_name = "its"
[train.train_policy]
type = "sft"
mini_batch = 1
dataset.test_size = 0
dataloader_num_workers = 4
[train.ckpt]
enable_checkpoint = true
[policy.parallelism]
tp_size = 1
dp_shard_size = 1
"""

TEMPLATE = """\
train:
  resume: false
  epoch: 10
  compile: false
  train_batch_per_replica: 1
  output_dir: output
  optm_lr: 1.0e-06
  optm_impl: foreach
  optm_weight_decay: 0.01
  optm_min_lr_factor: 0.0
  optm_grad_norm_clip: 1.0
  epsilon: 1.0e-08
  optm_name: AdamW
  optm_betas: [0.9, 0.999]
  optm_warmup_epochs: 0
  optm_decay_type: linear
  async_tp_enabled: false
  master_dtype: float32
  param_dtype: bfloat16
  fsdp_reduce_dtype: float32
  fsdp_offload: false
  fsdp_reshard_after_forward: default
  sync_weight_interval: 1
  ckpt: {enable_checkpoint: true, save_freq_in_epoch: 10, save_mode: sync, max_keep: 8, export_safetensors: true}
  train_policy:
    type: sft
    mini_batch: 4
    enable_dataset_cache: true
    dataloader_num_workers: 8
    dataloader_prefetch_factor: 8
    conversation_column_name: conversations
    dataset: {name: its, test_size: 1}
  fp8: {enable_fp8: false, fp8_recipe: dynamic_scaling, quant_recipe: rowwise}
validation:
  enable: true
  freq_in_epoch: 10
  batch_size: 4
  dataloader_num_workers: 8
  dataloader_prefetch_factor: 8
  enable_dataset_cache: false
  dataset: {name: "", subset: "", split: train}
policy:
  model_name_or_path: nvidia/Cosmos-Reason2-8B
  model_max_length: 4096
  model_gradient_checkpointing: true
  parallelism: {n_init_replicas: 1, tp_size: 1, cp_size: 1, dp_shard_size: 1, dp_replicate_size: 1, pp_size: 1,
                cp_rotate_method: allgather}
  lora: {r: 8, lora_alpha: 8, lora_dropout: 0.0, target_modules: [q_proj, v_proj], modules_to_save: [],
         use_rslora: false, init_lora_weights: true, alpha_pattern: {}, r_pattern: {}}
logging: {logger: [console, tao], project_name: cosmos-rl, experiment_name: cosmos-rl}
redis: "12800"
results_dir: ""
custom_script: ""
custom:
  train_dataset: {annotation_path: "{data}/annotations.json", media_path: "{data}/clips"}
  vision: {nframes: 8}
  system_prompt: ""
"""
"""The train template of the skill, leaf by leaf, with paths that exist."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    turns = [{"from": "human", "value": "<video>\nIs it?"}, {"from": "gpt", "value": "yes"}]
    record = {"video": "a.mp4", "video_fps": 10, "conversations": turns}
    records = [{"id": str(number), **record} for number in range(SAMPLES)]
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


@pytest.fixture
def read(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def read(text: str, *words: str, suffix: str = "toml") -> Any:
        file = tmp_path / f"spec.{suffix}"
        file.write_text(text.replace("{data}", str(data)))
        return load(str(file), spec_words=words)

    return read


def problems_of(read: Any, text: str, *words: str, suffix: str = "toml") -> dict[str, str]:
    """Path -> the advice, of every mistake."""
    with pytest.raises(ConfigError) as error:
        read(text, *words, suffix=suffix)
    return {problem.path: problem.hint or "" for problem in error.value.problems}


def values(loaded: Any, *paths: str) -> list[Any]:
    return [find(loaded.tree, parse_path(path)) for path in paths]


def test_a_cookbook_spec_leads_to_its_run(read: Any, data: Path) -> None:
    loaded = read(COOKBOOK)
    expected = {
        "job.project": "cosmos_reason2",
        "job.name": "its",
        "job.wandb_mode": "online",
        "model.config.policy.backbone.model_name": "nvidia/Cosmos-Reason2-2B",
        "model.config.lora_enabled": False,
        "model.config.compile.enabled": False,
        "model.config.activation_checkpointing.mode": "full",
        "optimizer.lr": 2e-5,
        "optimizer.eps": 1e-6,
        "scheduler.cycle_lengths": [10],
        "scheduler.warm_up_steps": [0],
        "trainer.max_iter": 10,  # 3 passes over 112 samples are 10.5 steps of 32
        "trainer.grad_accum_iter": 32,
        "trainer.run_validation": False,
        "checkpoint.save_iter": 20,
        "checkpoint.keep_latest_k": 5,
        "dataloader_train.max_samples_per_batch": 1,
        "dataloader_train.max_sequence_length": 32769,
        "dataloader_train.num_workers": 4,
        "dataloader_train.dataset.path": f"{data}/annotations.json",
        "dataloader_train.dataset.media_root": f"{data}/clips",
        "dataloader_train.dataset.system_prompt": "You are a helpful assistant.",
        "dataloader_train.dataset.video_fps": "require",
        "dataloader_train.processor.media.nframes": 8,
        "dataloader_train.processor.media.fps": None,
    }
    assert dict(zip(expected, values(loaded, *expected))) == expected
    assert type(loaded.tree.scheduler).__qualname__ == "LambdaCosine.Config"


def test_every_value_knows_the_line_that_it_comes_from(read: Any) -> None:
    loaded = read(COOKBOOK, "train.optm_weight_decay=0.1")
    origin = {path: str(loaded.provenance[parse_path(path)]) for path in ("optimizer.lr", "optimizer.weight_decay")}
    assert origin == {"optimizer.lr": "spec.toml:9", "optimizer.weight_decay": "override train.optm_weight_decay=0.1"}
    assert str(loaded.provenance[("optimizer", "eps")]) == "spec.toml (left out: train.epsilon)"
    assert str(loaded.provenance[("trainer", "max_iter")]) == "spec.toml:16"


def test_dead_keys_are_named(read: Any) -> None:
    text = COOKBOOK.replace("compile = false", "compile = false\nvalidation_step = 5\nvalidation_batch_per_replica = 2")
    warned = " ".join(read(text, "policy.parallelism.cp_rotate_method=p2p").warnings)
    for key in ("enable_validation", "validation_step", "validation_batch_per_replica", "cp_rotate_method"):
        assert f"{key} is dead: nothing ever read it" in warned


def test_the_template_as_shipped_is_caught(read: Any, data: Path) -> None:
    found = problems_of(read, TEMPLATE, suffix="yaml")
    assert found == {
        "train.train_batch_per_replica": (
            "train.train_policy.mini_batch=1 (the same step, 1 at once), or train.train_batch_per_replica=4"
        ),
        "validation.enable": "custom.val_dataset.annotation_path=FILE, or validation.enable=false",
    }
    words = ("train.train_policy.mini_batch=1", f"custom.val_dataset.annotation_path={data}/annotations.json")
    loaded = read(TEMPLATE, *words, suffix="yaml")
    expected = {
        "trainer.max_iter": 1120,
        "checkpoint.save_iter": 1120,
        "checkpoint.async_save": False,
        "trainer.validation_iter": 1120,
        "trainer.run_validation": True,
        "model.config.lora_target_modules": "q_proj,v_proj",
        "model.config.lora_alpha": 8,
        "optimizer.eps": 1e-8,
        "optimizer.fused": False,
        "scheduler.cycle_lengths": [1120],
        "dataloader_val.max_samples_per_batch": 4,
        "dataloader_val.max_sequence_length": 4 * 4096 + 1,
        "dataloader_val.num_workers": 8,
        "dataloader_val.processor.media.nframes": 8,
        "dataloader_val.dataset.path": words[1].partition("=")[2],
    }
    assert dict(zip(expected, values(loaded, *expected))) == expected


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
    assert set(found) == {"policy.lora.lora_dropout", "train.train_batch_per_replica"}
    assert "lora_dropout=0" in found["policy.lora.lora_dropout"]
    assert found["train.train_batch_per_replica"] == "train.train_batch_per_replica=28"  # 112 samples on 4 processes
    loaded = read(TEMPLATE, *block, "policy.lora.lora_dropout=0", "batch_size=28", suffix="yaml")
    paths = ("trainer.max_iter", "checkpoint.save_iter", "model.config.lora_rank", "model.config.lora_alpha")
    assert values(loaded, *paths) == [1, 1, 16, 256]
    assert values(loaded, "model.config.parallelism.data_parallel_shard_degree", "trainer.grad_accum_iter") == [4, 28]
    assert values(loaded, "dataloader_val.dataset.system_prompt") == ["You are a helpful assistant."]
    assert values(loaded, "model.config.policy.backbone.model_name") == ["a/b"]


def test_a_missing_type_means_sft_and_is_said(read: Any) -> None:
    loaded = read(COOKBOOK.replace('type = "sft"\n', ""))
    assert any("train.train_policy.type is approximated: it is left out, and means sft" in w for w in loaded.warnings)
    assert loaded.tree == read(COOKBOOK).tree
    assert not any("train_policy.type" in warning for warning in read(COOKBOOK).warnings)


@pytest.mark.parametrize("key", RL_KEYS)
def test_keys_of_reinforcement_learning_are_refused(read: Any, key: str) -> None:
    text = COOKBOOK.replace('type = "sft"', f"{key} = 0.5")
    assert problems_of(read, text) == {f"train.train_policy.{key}": "remove it, and write type = sft"}


def test_grpo_and_rollout_tables_are_refused(read: Any) -> None:
    text = COOKBOOK.replace('"sft"', '"grpo"') + "[rollout]\nn = 1\n[rollout.parallelism]\ntp_size = 1\n"
    assert set(problems_of(read, text)) == {"train.train_policy.type", "rollout"}


BATCHES = [
    (6, 4, "train.train_policy.mini_batch=3 (the same step, 3 at once), or train.train_batch_per_replica=8"),
    (1, 4, "train.train_policy.mini_batch=1 (the same step, 1 at once), or train.train_batch_per_replica=4"),
    (7, 2, "train.train_policy.mini_batch=1 (the same step, 1 at once), or train.train_batch_per_replica=8"),
]


@pytest.mark.parametrize(("batch", "mini", "advice"), BATCHES)
def test_a_batch_that_is_no_multiple_names_values_that_work(read: Any, batch: int, mini: int, advice: str) -> None:
    words = (f"train.train_policy.mini_batch={mini}", f"train.train_batch_per_replica={batch}")
    found = problems_of(read, COOKBOOK, *words)
    assert found == {"train.train_batch_per_replica": advice}
    for word in advice.replace(",", "").split():
        if "=" in word:
            assert read(COOKBOOK, *words, word).tree.trainer.grad_accum_iter


STEPS = [
    (("epoch=1", "train_batch_per_replica=8"), (), 14),
    (("epoch=3",), (), 10),
    (("epoch=3",), ("train.train_policy.dataloader_drop_last=false",), 11),
    (("epoch=3",), ("policy.parallelism.dp_shard_size=2",), 5),
    (("epoch=2",), ("policy.parallelism.dp_shard_size=2", "policy.parallelism.dp_replicate_size=3"), 1),
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
    assert read(COOKBOOK, "dp_shard_size=-1").tree.trainer.max_iter == 10
    monkeypatch.undo()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert read(COOKBOOK, "dp_shard_size=-1").tree.trainer.max_iter == 5


def test_passes_over_data_that_cannot_be_read_are_refused_and_steps_are_not(read: Any) -> None:
    word = "custom.dataset.annotation_path=/nowhere/annotations.json"
    assert "train.max_num_steps=N" in problems_of(read, COOKBOOK, word)["train.epoch"]
    assert read(COOKBOOK, word, "train.max_num_steps=7").tree.trainer.max_iter == 7
    later = ("train.max_num_steps=7", "train.ckpt.save_freq_in_epoch=1", "train.optm_warmup_epochs=0.5")
    assert set(problems_of(read, COOKBOOK, word, *later)) == {later[1].partition("=")[0], later[2].partition("=")[0]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("[]", "has 0 records and none that can be used"),
        ('[{"id": "a", "conversations": 1}]', "none that can be used, the first: "),
        ("{", "JSON"),
    ],
)
def test_data_without_a_usable_record_is_said(read: Any, tmp_path: Path, records: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(records)
    with pytest.raises(ConfigError, match=message) as error:
        read(COOKBOOK, f"custom.dataset.annotation_path={tmp_path}/bad.json")
    assert [problem.path for problem in error.value.problems] == ["train.epoch"]


def test_records_are_counted_whether_they_state_a_rate_or_not(read: Any, data: Path, tmp_path: Path) -> None:
    records = json.loads((data / "annotations.json").read_text())
    for record in records:
        del record["video_fps"]
    (tmp_path / "unstated.json").write_text(json.dumps(records))
    loaded = read(COOKBOOK, f"custom.dataset.annotation_path={tmp_path}/unstated.json")
    assert (loaded.tree.trainer.max_iter, loaded.tree.dataloader_train.dataset.video_fps) == (10, "require")


def test_a_step_of_more_samples_than_there_are_names_the_largest_batch(read: Any) -> None:
    words = ("train.train_batch_per_replica=256", "train.train_policy.mini_batch=8", "train.epoch=1")
    found = problems_of(read, COOKBOOK, *words, "dp_shard_size=2")
    assert found == {"train.train_batch_per_replica": "train.train_batch_per_replica=56"}
    assert read(COOKBOOK, *words, "dp_shard_size=2", "batch_size=56").tree.trainer.max_iter == 1


MISTAKES: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("custom.vision.fps=2",), {"custom.vision.nframes": "~custom.vision.nframes or ~custom.vision.fps"}),
    (("custom.vision.video_start=1.5",), {"custom.vision.video_start": "cut the clips beforehand"}),
    (
        ("custom.vision.resized_height=64", "custom.vision.resized_width=64"),
        dict.fromkeys(
            ("custom.vision.resized_height", "custom.vision.resized_width"), "custom.vision.max_pixels=HEIGHT*WIDTH"
        ),
    ),
    (
        ("policy.parallelism.tp_size=2",),
        {"policy.parallelism.tp_size": "policy.parallelism.tp_size=1 policy.parallelism.dp_shard_size=2"},
    ),
    (
        ("policy.parallelism.pp_size=2", "policy.parallelism.cp_size=4"),
        dict.fromkeys(
            ("policy.parallelism.cp_size", "policy.parallelism.pp_size"),
            "write 1, and a larger policy.parallelism.dp_shard_size",
        ),
    ),
    (
        ("policy.freeze_pattern=[visual]", "policy.trainable_pattern=[lm_head]"),
        {"policy.trainable_pattern": "~policy.freeze_pattern or ~policy.trainable_pattern"},
    ),
    (("policy.trainable_map={visual: true}",), {"policy.trainable_map": 'policy.trainable_pattern=["visual"]'}),
    (
        ("train.optm_lr=[1e-4, 2e-4, 1e-5]",),
        {
            "train.optm_lr": (
                'write a table: train.optm_lr = {global = 1e-05, "model.visual.merger" = 0.0002, '
                '"model.visual" = 0.0001}'
            )
        },
    ),
    (("train.optm_lr={model.visual: 1e-5}",), {"train.optm_lr": "train.optm_lr.global=1e-6"}),
    (
        ("train.ckpt.save_freq=0",),
        {"train.ckpt.save_freq": "train.ckpt.save_freq=20, or train.ckpt.save_freq_in_epoch=1"},
    ),
    (
        ("train.ckpt.upload_s3=final",),
        {"train.ckpt.upload_s3": "turn it off, and send what `worldsmith export` writes"},
    ),
    (("train.fp8.enable_fp8=true",), {"train.fp8.enable_fp8": "turn it off"}),
    (("train.param_dtype=float16",), {"train.param_dtype": ""}),
    (
        ("custom.dataset.annotation_path=s3://bucket/annotations.json",),
        {"custom.dataset.annotation_path": "copy it here and give its path"},
    ),
    (
        ("custom.dataset.media_path=/data/videos.tar.gz",),
        {"custom.dataset.media_path": "unpack it: custom.dataset.media_path=FOLDER"},
    ),
    (
        ("~custom.dataset", "train.train_policy.dataset.name=nvidia/Some-Set"),
        {
            "custom.train_dataset.annotation_path": "custom.train_dataset.annotation_path=FILE "
            "custom.train_dataset.media_path=FOLDER"
        },
    ),
    (
        ("train.train_policy.system_prompt=other",),
        {"train.train_policy.system_prompt": "~train.train_policy.system_prompt or ~custom.dataset.system_prompt"},
    ),
    (
        ("policy.lora={r: 8}",),
        {
            "policy.lora.target_modules": "policy.lora.target_modules=[q_proj,v_proj], or "
            "policy.lora.target_modules=all-linear"
        },
    ),
    (
        ("policy.lora={r: 8, use_rslora: true, target_modules: [q_proj]}",),
        {"policy.lora.lora_alpha": "policy.lora.lora_alpha=23 policy.lora.use_rslora=false"},
    ),
    (("train.epoc=3",), {"train.epoc": "did you mean 'train.epoch'?"}),
    (("custom.visoin.fps=2",), {"custom.visoin": "did you mean 'custom.vision'?"}),
    (("policy.modelmax_length=9",), {"policy.modelmax_length": "did you mean 'policy.model_max_length'?"}),
    (("train.optm_betas=[0.9, 1.5]",), {"train": ""}),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_what_the_file_alone_can_tell_is_refused_with_the_way_out(
    read: Any, words: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert problems_of(read, COOKBOOK, *words) == expected


ODD = [
    *("train.train_policy.mini_batch=0", "train.train_batch_per_replica=0", "train.epoch=0", "dp_shard_size=0"),
    *("policy.lora={r: 0, target_modules: [a]}", "policy.lora={lora_alpha: inf, target_modules: [a]}", "train=5"),
    *("policy.lora=true", "custom=3", "custom.vision=null", "train.optm_lr={}", "train.optm_lr=[]", "policy=[]"),
    *("train.optm_warmup_steps=-1", "train.optm_decay_ratio=2", "policy.model_max_length=0", "logging.logger=wandb"),
    *("train.seed=99999999999999999999", "train.optm_grad_norm_clip=nan", "custom.vision.fps=inf"),
    *("policy.freeze_pattern=['(']", "train.resume=''", "custom.dataset.annotation_path="),
]


@pytest.mark.parametrize("word", ODD)
def test_an_odd_value_is_one_mistake_and_nothing_is_reckoned_with_it(read: Any, word: str) -> None:
    assert len(problems_of(read, COOKBOOK, word)) == 1
    assert len(problems_of(read, COOKBOOK, word, "validation={enable: true, batch_size: 0}")) >= 1


def test_all_mistakes_are_one_report(read: Any) -> None:
    words = [word for words, _ in MISTAKES[:8] for word in words]
    assert len(problems_of(read, COOKBOOK, *words)) == 10


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
        ("model.visual.merger", pytest.approx(20)),
        ("model.visual", pytest.approx(0.5)),
    ]
    assert read(COOKBOOK, "train.optm_lr=[3e-6]").tree.optimizer.lr == 3e-6


def test_adapters(read: Any) -> None:
    words = ("policy.lora={r: 16, lora_alpha: 32, target_modules: all-linear}", "policy.lora.use_rslora=true")
    loaded = read(COOKBOOK, *words)
    config = loaded.tree.model.config
    assert (config.lora_enabled, config.lora_rank, config.lora_alpha) == (True, 16, 128)
    assert len(config.lora_target_modules.split(",")) == 11


def test_saving(read: Any) -> None:
    words = ("train.ckpt.max_keep=-1", "train.ckpt.save_freq_in_epoch=1", "train.ckpt.save_mode=sync")
    loaded = read(COOKBOOK, *words)
    names = ("save_iter", "keep_latest_k", "async_save")
    assert [getattr(loaded.tree.checkpoint, name) for name in names] == [4, None, False]  # 3.5 steps a pass
    assert read(COOKBOOK, "train.ckpt.enable_checkpoint=false").tree.checkpoint.save_iter == 10


def test_going_on(read: Any) -> None:
    nameless = COOKBOOK.replace('experiment_name = "its"\n', "").replace('output_dir = "outputs/its"\n', "")
    assert read(nameless).tree.job.name == ""  # each start is a new run, as there
    assert read(nameless, "train.resume=true").tree.job.name == "outputs"
    assert read(nameless, "train.output_dir=/big/disk/mine").tree.job.name == "mine"
    loaded = read(nameless, "train.resume=/runs/a")
    assert (loaded.tree.checkpoint.load_path, loaded.tree.checkpoint.load_training_state) == ("/runs/a", True)


def test_without_any_frames_those_of_the_old_hook_are_taken_and_it_is_said(read: Any) -> None:
    loaded = read(COOKBOOK, "~custom.vision")
    media = loaded.tree.dataloader_train.processor.media
    assert (media.fps, media.max_pixels, media.nframes) == (1.0, 81920, None)
    assert any("nothing is said of frames" in warning for warning in loaded.warnings)


def test_pixels_of_a_video_are_counted_otherwise_and_limits_of_fps_do_nothing_beside_nframes(read: Any) -> None:
    loaded = read(COOKBOOK, "custom.vision.total_pixels=3136000", "custom.vision.max_frames=16")
    media = loaded.tree.dataloader_train.processor.media
    assert (media.total_pixels, media.max_frames, media.nframes) == (6272000, None, 8)
    assert any("custom.vision.max_frames is dead" in warning for warning in loaded.warnings)


def test_the_cap_of_a_sample_becomes_that_of_a_pack_and_it_is_said(read: Any) -> None:
    loaded = read(COOKBOOK, "mini_batch=4")
    assert values(loaded, "dataloader_train.max_sequence_length") == [4 * 32768 + 1]
    assert any("model_max_length is approximated" in warning for warning in loaded.warnings)


def test_reading_ahead_without_readers_is_dead(read: Any) -> None:
    words = ("train.train_policy.dataloader_num_workers=0", "train.train_policy.dataloader_prefetch_factor=4")
    loaded = read(COOKBOOK, *words)
    assert any("prefetch_factor is dead" in warning for warning in loaded.warnings)
    assert read(COOKBOOK, words[1]).tree.dataloader_train.prefetch_factor == 4


def test_a_default_of_two_for_tensor_parallelism_is_said(read: Any) -> None:
    text = COOKBOOK.replace("tp_size = 1\n", "")
    assert any("tp_size is approximated: it is left out" in warning for warning in read(text).warnings)


def test_every_stated_key_is_in_the_report_once(read: Any) -> None:
    report = read(COOKBOOK).report
    assert report.startswith(f"{read(COOKBOOK).source}: 25 keys: ")
    stated = report.partition("left out, with")[0]
    keys = ("redis", "train.enable_validation", "custom.dataset.media_path", "train.train_policy.dataset.test_size")
    for key in keys:
        assert sum(line.split()[1] == key for line in stated.splitlines()[1:]) == 1
    assert "train.epsilon" in report.partition("left out")[2]


SAYING = (
    *("train.seed=-1", "train.optm_warmup_epochs=1", "train.optm_decay_ratio=0.5", "train.max_num_steps=9"),
    *("custom.system_prompt=a", "custom.train_dataset.system_prompt=a", "train.train_policy.system_prompt=a"),
    *("custom.vision={nframes: 8, min_frames: 2, min_pixels: 5}", "train.fa_version=2", "policy.model_revision=x"),
    *("policy.freeze_pattern=[a]", "logging.group_name=g", "train.train_policy.mini_batch=1"),
    "policy.lora={r: 4, lora_names: [default], lora_path: '', primary_adapter: null, target_modules: [q_proj]}",
)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("passes", [0, 1])
def test_no_stated_key_is_left_out_of_the_report(
    read: Any, data: Path, tmp_path: Path, enabled: bool, saved: bool, passes: int
) -> None:
    """The template with every key, switched on and off."""
    file = tmp_path / "every.yaml"
    file.write_text(spec_template(FORM, str(file)))
    words = (
        *(f"custom.{name}_dataset.annotation_path={data}/annotations.json" for name in ("train", "val")),
        *(f"validation.enable={str(enabled).lower()}", f"validation.freq_in_epoch={passes}"),
        *(f"train.ckpt.enable_checkpoint={str(saved).lower()}", f"train.ckpt.save_freq_in_epoch={passes}"),
    )
    translation = translate(read_spec(FORM, str(file), [*words, *SAYING]))
    assert [problem.render() for problem in translation.problems] == []
    told = {line.key for line in translation.lines}
    assert [key for key in leaf_keys(FORM.spec) if translation.is_stated(key) and key not in told] == []


def test_no_key_is_without_a_row_and_none_has_two() -> None:
    keys = leaf_keys(FORM.spec)
    assert [key for key in keys if FORM.row_of(key) is None] == []
    told = [key for row in FORM.rows for key in row.keys]
    assert len(told) == len(set(told))
    inside = [key for row in FORM.rows if not row.outside for key in row.keys]
    assert [key for key in inside if not any(f"{leaf}.".startswith(f"{key}.") for leaf in keys)] == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"train": {"epoch": 1}}, True),
        ({"policy": {"lora": {}}, "custom": {}}, True),
        ({"train": {"steps": 1}}, False),
        ({"train": 3, "logging": {"logger": []}}, False),
        ({"train": {"epoch": 1}, "dialect": "other"}, False),
        ({"train": {"epoch": 1}, "recipe": "llava_ov"}, False),
    ],
)
def test_a_spec_is_known_by_its_tables(data: dict[str, Any], expected: bool) -> None:
    assert has_spec_keys(data) == expected


def test_a_file_of_ours_is_no_spec(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[job]\ntask = "vlm"\nexperiment = "llava_ov"\n[train]\nepoch = 1\n')
    with pytest.raises(ConfigError, match="the file has no key 'train'"):
        load(str(file))
