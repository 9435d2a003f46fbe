"""Values of the run that a published training spec leads to, against those that Cosmos-RL's own code gives its file.

Reference values come from Cosmos-RL's validated config and from its functions, run on a CPU over a dataset of 9001
records. Columns for which `spec_values` says `derived` also need a data script that is in no wheel, or a key of TAO.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from unittest import mock

import pytest
from published_files import make_data
from reference_code import CONFIG, COSMOS_RL
from spec_values import COLUMNS, IMAGES, RECORDS, SPECS, VIDEOS, SpecCase, find_differences, has_column

ReadCase = Callable[..., SpecCase]
HF_SFT = "cosmos-reason2 cosmos_rl/hf_sft.toml"
LORA = "tao-skill-bank tao-finetune-cosmos-reason/spec_template_train.yaml 7.0.0"
AVHA = "cosmos-cookbook reason1/av_video_caption_vqa/avha_sft.toml"
GROUNDING = "cosmos-cookbook reason2/av_3d_grounding/{}_av_grounding.sft.toml"
WAREHOUSE = "cosmos-cookbook reason1/spatial-ai-warehouse/sft.toml"
ENLARGED = (
    "its frames have fewer pixels than max_pixels, which is below 128 tokens: qwen-vl-utils 0.0.11, which "
    "Cosmos-Reason1 requires, enlarges them to 128 tokens, beyond max_pixels, and 0.0.14 stops with an error; here "
    "max_pixels is the limit (docs/specs.md)"
)
REFUSED = (
    "max_pixels is below 128 tokens of a frame, and below the least pixels of an image: qwen-vl-utils 0.0.14 stops "
    "with an AssertionError; here frames and larger images obey max_pixels (docs/specs.md)"
)
CONSTANTS = "avha_sft.py has constants of its own, 2 frames a second of 112,897 pixels, which are not in its spec"
EXCEPTIONS = {
    **{
        (spec.name, "pixels"): ({"4 s 320x240"}, ENLARGED)
        for spec in SPECS
        if spec.script == "reason1" and spec.name not in (GROUNDING.format("cr1"), WAREHOUSE)
    },
    (GROUNDING.format("cr2"), "pixels"): ({*VIDEOS, *IMAGES}, REFUSED),
    (AVHA, "pixels"): ({*VIDEOS, "1920x1080"}, CONSTANTS),
    (AVHA, "fps"): ({*VIDEOS}, CONSTANTS),
}
"""(spec, column): the entries that differ on purpose, and why."""


@pytest.fixture(scope="module")
def read_case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadCase]:
    """Reads a spec with overrides, in a folder with the data that it asks for."""
    COSMOS_RL.read(CONFIG)
    folder = tmp_path_factory.mktemp("specs")
    make_data(folder, RECORDS)
    specs = {spec.name: spec for spec in SPECS}

    @cache
    def read(name: str, *words: str) -> SpecCase:
        return SpecCase(specs[name], folder, *words)

    with contextlib.chdir(folder), mock.patch.dict(os.environ):
        os.environ.pop("WORLD_SIZE", None)
        yield read


@pytest.mark.parametrize(
    ("name", "column"),
    [(spec.name, column) for spec in SPECS for column in COLUMNS if has_column(spec, column)],
)
def test_a_published_spec_has_the_values_that_it_has_there(name: str, column: str, read_case: ReadCase) -> None:
    values = COLUMNS[column](read_case(name))
    expected, reason = EXCEPTIONS.get((name, column), (set(), ""))
    assert find_differences(values) == expected, (values.text, reason)


OF_NETWORK, OF_STEPS = ("lr", "LoRA", "freezing"), ("steps", "schedule", "intervals")
SCHEDULE = {
    "optm_warmup_steps": 0.1, "optm_warmup_start_factor": 0.1, "optm_decay_type": "sqrt", "optm_decay_ratio": 0.3,
    "optm_min_lr_factor": 0.05, "epoch": 3,
}  # fmt: skip
VARIANTS = [
    (HF_SFT, ("policy.freeze_pattern=[visual]",), OF_NETWORK),
    (HF_SFT, (r"policy.freeze_pattern=['^model\.visual\.(?!merger)', embed_tokens]",), OF_NETWORK),
    (HF_SFT, (r"policy.trainable_pattern=['layers\.1\.', lm_head]",), OF_NETWORK),
    (LORA, (r"policy.freeze_pattern=['layers\.0\.']",), OF_NETWORK),
    (LORA, (r"policy.trainable_pattern=['layers\.0\..*lora_']",), OF_NETWORK),
    (LORA, ("policy.lora.r=16", "policy.lora.lora_alpha=32", "policy.lora.use_rslora=true"), OF_NETWORK),
    (LORA, ("policy.lora.target_modules=all-linear", "policy.lora.lora_dropout=0.1"), OF_NETWORK),
    (LORA, ("policy.lora.target_modules=[qkv, linear_fc1, o_proj]",), OF_NETWORK),
    (HF_SFT, ("train.optm_lr={global: 1e-6, model.visual: 1e-5, model.visual.merger: 1e-4}",), ("lr",)),
    (HF_SFT, ("train.optm_lr={model: 2e-6, model.visual: 3e-6, global: 1e-6}",), ("lr",)),
    (HF_SFT, ("train.optm_lr={model.language_model.layers.1: 3e-6, global: 1e-6}",), ("lr",)),
    (LORA, ("train.optm_lr={model.language_model.layers.1: 3e-5, global: 1e-4}",), ("lr",)),
    (HF_SFT, tuple(f"train.{key}={value}" for key, value in SCHEDULE.items()), OF_STEPS),
    (HF_SFT, ("train.max_num_steps=50", "train.epoch=3", "train.optm_decay_type=linear"), OF_STEPS),
    (HF_SFT, ("train.train_policy.dataloader_drop_last=false", "train.ckpt.save_freq_in_epoch=2"), OF_STEPS),
    (
        HF_SFT,
        ("policy.parallelism.dp_replicate_size=3", "policy.parallelism.dp_shard_size=2"),
        (*OF_STEPS, "batch", "parallelism"),
    ),
    (AVHA, ("custom.vision={fps: 2, max_pixels: 112897}",), ("pixels", "fps")),
    (
        HF_SFT,
        ("custom.vision={fps: 4, min_frames: 5, max_frames: 9, min_pixels: 12544, max_pixels: 200000}",),
        ("pixels", "fps"),
    ),
    (HF_SFT, ("custom.vision={nframes: 7, resized_height: 500, resized_width: 700}",), ("pixels", "fps")),
]


@pytest.mark.parametrize(("name", "words", "columns"), VARIANTS)
def test_a_changed_spec_has_the_values_that_it_has_there(
    name: str, words: tuple[str, ...], columns: tuple[str, ...], read_case: ReadCase
) -> None:
    case = read_case(name, *words)
    for column in columns:
        values = COLUMNS[column](case)
        assert find_differences(values) == set(), (column, values.text)


def test_unset_shards_are_the_processes_of_the_start(read_case: ReadCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    words = "policy.parallelism.dp_shard_size=-1", "policy.parallelism.dp_replicate_size=2"
    case = read_case(HF_SFT, *words)
    case.processes = 8
    for column in ("steps", "schedule", "batch", "parallelism"):
        assert find_differences(COLUMNS[column](case)) == set(), column
