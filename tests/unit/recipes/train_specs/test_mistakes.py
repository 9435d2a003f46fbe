"""Training specs in the shapes of Cosmos-RL and TAO: all that is wrong with one, and the way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from train_specs import COOKBOOK, TEMPLATE, problems_of, values

from worldsmith.config.errors import ConfigError
from worldsmith.config.load import load
from worldsmith.dialects.cosmos_rl.train.key_rules import RL_RULES


def test_the_template_as_shipped_is_caught(read: Any, data: Path) -> None:
    found = problems_of(read, TEMPLATE, suffix="yaml")
    assert found == {
        "train.train_batch_per_replica": (
            "train.train_policy.mini_batch=1 (the same step in parts of 1 samples), or train.train_batch_per_replica=4"
        ),
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
        "dataloader_val.max_sample_tokens": 4096,
        "dataloader_val.num_workers": 8,
        "dataloader_val.processor.media.nframes": 8,
        "dataloader_val.dataset.path": words[1].partition("=")[2],
    }
    assert dict(zip(expected, values(loaded, *expected))) == expected


RL = """\
[train.train_policy]
type = "grpo"
variant = "dapo"
temperature = 0.9
unknown_key = 1
[rollout]
backend = "vllm"
[rollout.parallelism]
tp_size = 4
[policy.parallelism]
tp_size = 4
"""


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({}, "train.train_policy.type", "reinforcement learning (grpo) is not supported"),
        ({'"grpo"': '"grpo"\ntrainer_type = "diffusion_nft"'}, "train.train_policy.type", "(diffusion_nft)"),
        ({"[rollout]": "[distillation]\nenable = true\n[rollout]"}, "train.train_policy.type", "(distillation)"),
        ({'type = "grpo"\n': ""}, "train.train_policy.variant", "(grpo)"),
        ({'"grpo"': '"sft"\ntrainer_type = "pi_sft"'}, "train.train_policy.trainer_type", "expected sft, found pi_sft"),
        ({"[rollout]": "[policy]\nis_diffusers = true\n[rollout]"}, "policy.is_diffusers", "a diffusion model"),
    ],
)
def test_another_training_is_one_answer(read: Any, changes: dict[str, str], path: str, text: str) -> None:
    spec = RL
    for old, new in changes.items():
        spec = spec.replace(old, new)
    with pytest.raises(ConfigError) as error:
        read(spec)
    (problem,) = error.value.problems
    assert (problem.path, problem.place is not None) == (path, True)
    assert text in problem.message


def test_reinforcement_learning_of_a_generator_is_one_answer(tmp_path: Path) -> None:
    file = tmp_path / "ddrl.toml"
    file.write_text(
        "[[model.conditioner]]\nname = 'fps'\n[model_parallel]\na = 1\n[trainer]\nb = 1\n[job]\nname = 'x'\n"
    )
    with pytest.raises(ConfigError, match="reinforcement learning of a video generator is not supported") as error:
        load(str(file))
    assert len(error.value.problems) == 1


@pytest.mark.parametrize("key", [rule.keys[0] for rule in RL_RULES if "train_policy" in rule.keys[0]])
def test_keys_of_reinforcement_learning_without_a_type_are_one_answer(read: Any, key: str) -> None:
    text = COOKBOOK.replace('type = "sft"', f"{key.rpartition('.')[2]} = 0.5")
    assert list(problems_of(read, text)) == [key]


def test_keys_of_reinforcement_learning_have_no_effect_on_a_fine_tuning(read: Any) -> None:
    text = COOKBOOK.replace('"sft"', '"sft"\nkl_beta = 0.5') + "[rollout]\nn = 1\n"
    loaded = read(text)
    assert loaded.tree == read(COOKBOOK).tree
    for key in ("train.train_policy.kl_beta", "rollout"):
        assert any(f"{key} is dead: it belongs to reinforcement learning" in warning for warning in loaded.warnings)


BATCHES = [
    (6, 4, "train.train_policy.mini_batch=3 (the same step in parts of 3 samples), or train.train_batch_per_replica=8"),
    (1, 4, "train.train_policy.mini_batch=1 (the same step in parts of 1 samples), or train.train_batch_per_replica=4"),
    (7, 2, "train.train_policy.mini_batch=1 (the same step in parts of 1 samples), or train.train_batch_per_replica=8"),
]


@pytest.mark.parametrize(("batch", "mini", "advice"), BATCHES)
def test_a_batch_that_is_no_multiple_names_values_that_work(read: Any, batch: int, mini: int, advice: str) -> None:
    words = (f"train.train_policy.mini_batch={mini}", f"train.train_batch_per_replica={batch}")
    found = problems_of(read, COOKBOOK, *words)
    assert found == {"train.train_batch_per_replica": advice}
    for word in advice.replace(",", "").split():
        if "=" in word:
            assert read(COOKBOOK, *words, word).tree.trainer.grad_accum_iter


def test_a_step_of_more_samples_than_there_are_names_the_largest_batch(read: Any) -> None:
    words = ("train.train_batch_per_replica=256", "train.train_policy.mini_batch=8", "train.epoch=1")
    found = problems_of(read, COOKBOOK, *words, "dp_shard_size=2")
    assert found == {"train.train_batch_per_replica": "train.train_batch_per_replica=56"}
    assert read(COOKBOOK, *words, "dp_shard_size=2", "batch_size=56").tree.trainer.max_iter == 1


MISTAKES: list[tuple[tuple[str, ...], dict[str, str]]] = [
    (("custom.vision.fps=2",), {"custom.vision.nframes": "~custom.vision.nframes or ~custom.vision.fps"}),
    (("custom.vision.video_start=1.5",), {"custom.vision.video_start": "cut the clips beforehand"}),
    (
        ("custom.vision.resized_height=64",),
        {"custom.vision.resized_height": "custom.vision.resized_width=PIXELS, or ~custom.vision.resized_height"},
    ),
    (
        ("policy.parallelism.tp_size=2",),
        {"policy.parallelism.tp_size": "policy.parallelism.tp_size=1 policy.parallelism.dp_shard_size=2"},
    ),
    (
        ("policy.parallelism.pp_size=2", "policy.parallelism.cp_size=4"),
        dict.fromkeys(
            ("policy.parallelism.cp_size", "policy.parallelism.pp_size"),
            "set it to 1, and increase policy.parallelism.dp_shard_size",
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
        {"train.ckpt.upload_s3": "disable it, and upload the output of `worldsmith export`"},
    ),
    (
        ("policy.lora={r: 8, target_modules: [q_proj]}", "policy.trainable_pattern=['layers\\.0\\.', lora_A]"),
        {"policy.trainable_pattern": "~policy.trainable_pattern, or ~policy.lora"},
    ),
    (("train.fp8.enable_fp8=true",), {"train.fp8.enable_fp8": "disable it"}),
    (("train.param_dtype=float16",), {"train.param_dtype": ""}),
    (
        ("custom.dataset.annotation_path=/data/annotations.tar.gz",),
        {"custom.dataset.annotation_path": "unpack it: custom.dataset.annotation_path=FILE_OR_FOLDER"},
    ),
    (
        ("custom.dataset.path=/data/saved",),
        {"custom.dataset.path": "~custom.dataset.path or ~custom.dataset.annotation_path"},
    ),
    (
        ("validation.enable=true",),
        {
            "validation.enable": "train.train_policy.dataset.test_size=0.1, or "
            "custom.val_dataset.annotation_path=FILE, or validation.enable=false"
        },
    ),
    (
        ("~custom.dataset", "train.train_policy.dataset.name=nvidia/Some-Set"),
        {
            "custom.train_dataset.annotation_path": (
                "hf download nvidia/Some-Set --repo-type dataset --local-dir FOLDER, then "
                "train.train_policy.dataset.name=FOLDER; or custom.train_dataset.annotation_path=FILE "
                "custom.train_dataset.media_path=FOLDER"
            )
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
    (("train.epoc=3",), {"train.epoc": "did you mean 'train.epoch'?"}),
    (("custom.visoin.fps=2",), {"custom.visoin": "did you mean 'custom.vision'?"}),
    (("policy.modelmax_length=9",), {"policy.modelmax_length": "did you mean 'policy.model_max_length'?"}),
    (("num_gpu=2",), {"num_gpu": "did you mean 'num_gpus'?"}),
    (("learning_rat=2",), {"learning_rat": "did you mean 'learning_rate'?"}),
    (("num_epoch=2",), {"num_epoch": "did you mean 'num_epochs'?"}),
    (("batch_sise=2",), {"batch_sise": "did you mean 'batch_size'?"}),
    (("parent_job=X",), {"parent_job": "did you mean 'parent_job_id'?"}),
    (("automl_polcy=off",), {"automl_polcy": "did you mean 'automl_policy'?"}),
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


def test_offloading_is_refused_with_the_settings_that_save_memory(read: Any) -> None:
    """Those that the spec has already are not among them, and each of the others works."""
    words = ("train.fsdp_offload=true", "mini_batch=4", "policy.model_gradient_checkpointing=false")
    advice = problems_of(read, COOKBOOK, *words)["train.fsdp_offload"]
    found = re.findall(r"(?:train|policy)\.[\w.]+=(?:\{.*?\}|\w+)", advice)
    assert [word.partition("=")[0] for word in found] == [
        "train.fsdp_offload",
        "policy.model_gradient_checkpointing",
        "train.train_policy.mini_batch",
        "policy.lora",
    ]
    loaded = read(COOKBOOK, *words, *found)
    assert loaded.tree.model.config.lora_enabled
    adapted = load(loaded.source, re.findall(r"-- (\S+=\[.*?\]) (\S+)", advice)[0], spec_words=[*words, *found])
    assert adapted.tree.model.config.converters[0].bits == 4
    assert "mini_batch" not in problems_of(read, COOKBOOK, words[0])["train.fsdp_offload"]


def test_all_mistakes_are_one_report(read: Any) -> None:
    words = [word for words, _ in MISTAKES[:8] for word in words]
    assert len(problems_of(read, COOKBOOK, *words)) == 9
