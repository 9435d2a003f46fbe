"""Overrides by the tree paths of the published framework: each target of its table of remaps, by task.

The rows are that table: key of the TOML, path in the published tree (None: the key is dropped for the task), path here.
"""

from __future__ import annotations

import pytest

from worldsmith.config import ConfigError
from worldsmith.config.declare.configurable import find
from worldsmith.config.load import load
from worldsmith.config.tree.paths import parse_path

POLICY, CLIPS = "model.config.policy", "dataloader_train.dataloader.datasets.video.dataset"
BATCHER = "dataloader_train.batcher"
SAME = "model.config.*"
"""The rule for every other key of [model]: the same path here."""
REMAPS = {
    "vfm": [
        ("model.attn_implementation", None, None, None),
        ("model.backbone.model_name", None, None, None),
        ("dataloader_train.max_caption_tokens", f"{CLIPS}.max_caption_tokens", "dataloader_train.max_caption_tokens",
         "77"),
        ("model.precision", "model.config.precision", SAME, "float32"),
        ("model.max_num_tokens_after_packing", "model.config.max_num_tokens_after_packing", SAME, "4000"),
        ("model.lora_rank", "model.config.lora_rank", SAME, "3"),
        ("model.ema.rate", "model.config.ema.rate", SAME, "0.25"),
        ("model.tokenizer.vae_path", "model.config.tokenizer.vae_path", SAME, "here"),
        ("model.parallelism.data_parallel_replicate_degree",
         "model.config.parallelism.data_parallel_replicate_degree", SAME, "1"),
        ("model.compile.enabled", "model.config.compile.enabled", SAME, "false"),
        ("model.activation_checkpointing.mode", "model.config.activation_checkpointing.mode", SAME, "none"),
    ],
    "vlm": [
        ("model.max_num_tokens_after_packing", None, None, None),
        ("model.joint_attn_implementation", None, None, None),
        ("model.tokenizer.vae_path", None, None, None),
        # In an override these are paths of the tree here.
        ("dataloader_train.seed", None, "dataloader_train.seed", "3"),
        ("optimizer.eps", None, "optimizer.eps", "0.5"),
        ("scheduler.verbosity_interval", None, "scheduler.verbosity_interval", "3"),
        ("trainer.callbacks.compile_tokenizer.enabled", None, None, None),
        ("dataloader_train.max_caption_tokens", None, None, None),
        # Adapters of a reasoner are dropped there; here they train.
        ("model.lora_enabled", None, "model.config.lora_enabled", "true"),
        ("model.lora_rank", None, "model.config.lora_rank", "3"),
        ("model.lora_alpha", None, "model.config.lora_alpha", "5"),
        ("model.lora_target_modules", None, "model.config.lora_target_modules", "q_proj"),
        ("model.attn_implementation", f"{POLICY}.attn_implementation", SAME, "sdpa"),
        ("model.backbone.model_name", f"{POLICY}.backbone.model_name", SAME, "here"),
        ("model.backbone.safetensors_path", f"{POLICY}.backbone.safetensors_path", SAME, "here"),
        ("model.ema.rate", "model.config.ema.rate", SAME, "0.25"),
        ("dataloader_train.max_samples_per_batch", f"{BATCHER}.max_batch_size",
         "dataloader_train.max_samples_per_batch", "3"),
        ("dataloader_train.max_samples_per_batch", "dataloader_train.max_batch_size",
         "dataloader_train.max_samples_per_batch", "3"),
        ("dataloader_train.max_sequence_length", f"{BATCHER}.max_tokens", "dataloader_train.max_sequence_length",
         "900"),
        ("dataloader_train.max_sequence_length", "dataloader_train.max_tokens",
         "dataloader_train.max_sequence_length", "900"),
        ("model.precision", "model.config.precision", SAME, "float32"),
    ],
}  # fmt: skip
ROWS = [(task, *row) for task, rows in REMAPS.items() for row in rows]
RECIPES = {"vfm": "vision_sft_nano", "vlm": "videophy2_sft_nano"}


@pytest.fixture(autouse=True)
def eight_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")


@pytest.mark.parametrize(("task", "key", "published", "here", "value"), ROWS)
def test_every_target_of_the_published_remaps_is_a_path_of_an_override(
    task: str, key: str, published: str | None, here: str | None, value: str | None
) -> None:
    target = published if here == SAME else here
    words = [f"{path}={value or '1'}" for path in (key, published) if path]
    adapters = [
        *("model.config.lora_enabled=true", "model.config.lora_target_modules=o_proj"),
        "optimizer.keys_to_select=[]",
    ]
    for word in words:
        loaded = load(RECIPES[task], [*(adapters if "lora" in key else ()), word])
        if target is None:
            assert loaded.warnings == [f"{word}: {key} has no effect for task '{task}'"]
            continue
        assert str(find(loaded.tree, parse_path(target))).lower() == value
        renamed = word != words[0] and target != published
        assert loaded.warnings == ([f"{word}: {published} is {target} here"] if renamed else [])


def test_other_fields_of_the_published_data_set_and_batcher_have_their_names_here() -> None:
    words = [f"{CLIPS}.cfg_dropout_rate=0.3", f"{BATCHER}.max_sequence_length=7000"]
    loaded = load("vision_sft_nano_mapstyle_dataloader", words)
    loader = loaded.tree.dataloader_train
    assert (loader.dataset.cfg_dropout_rate, loader.max_sequence_length) == (0.3, 7000)
    assert len(loaded.warnings) == 2


@pytest.mark.parametrize("path", ["upload_reproducible_setup", "job.upload_reproducible_setup"])
@pytest.mark.parametrize("task", RECIPES)
def test_an_upload_may_be_false_only(task: str, path: str) -> None:
    assert load(RECIPES[task], [f"{path}=false"]).warnings == []
    with pytest.raises(ConfigError, match="the setup is not uploaded to an object store"):
        load(RECIPES[task], [f"{path}=true"])


def test_a_path_that_neither_tree_has_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="'dataloader_train' has no key 'pool'"):
        load("videophy2_sft_nano", [f"{BATCHER}.pool=1"])
