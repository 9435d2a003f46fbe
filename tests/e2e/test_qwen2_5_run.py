"""A tiny Qwen2.5-VL, the network of Cosmos-Reason1: a spec trains it; it goes on, is exported, asked and quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from reasoner_runs import make_world, reasoner_config
from reasoners import from_pretrained, logits, write_qwen2_5
from toy_runs import read_losses, require_same_end

from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import question
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.training.trainer import Outcome, Trainer

SPEC = """\
redis = "12800"
[custom.dataset]
annotation_path = "WORLD/data/annotations.json"
media_path = "WORLD/data"
system_prompt = ""
[train]
output_dir = "outputs/sft"
compile = false
train_batch_per_replica = 32
[policy]
model_name_or_path = "WORLD/model"
model_max_length = 4096
[logging]
logger = ["console", "wandb"]
project_name = "cosmos_reason1"
experiment_name = "post_training_llava/sft"
[train.train_policy]
type = "sft"
mini_batch = 4
[train.ckpt]
enable_checkpoint = true
[policy.parallelism]
tp_size = 1
cp_size = 1
dp_shard_size = 4
pp_size = 1
"""
"""The keys and values of the released spec for Cosmos-Reason1 on LLaVA annotations, but for its paths."""
SMALL = (
    *("policy.parallelism.dp_shard_size=1", "policy.model_max_length=600", "train.train_batch_per_replica=2"),
    *("train.train_policy.mini_batch=1", "train.max_num_steps=2", "logging.log_interval=1", "logging.logger=[console]"),
)
"""For one process and six conversations."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the released models have it, the folder states nothing of videos."""
    folder = tmp_path_factory.mktemp("world")
    return make_world(folder, write=lambda path: write_qwen2_5(path, videos=False))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of six uninterrupted steps, saved after 3 and 6."""
    folder = tmp_path_factory.mktemp("whole")
    assert Trainer(config_of(world), run_folder=folder).train() is Outcome.FINISHED
    return folder


def config_of(world: Path) -> Trainer.Config:
    config = reasoner_config(world, steps=6, save_iter=3)
    config.model.config.ema.enabled = False
    config.dataloader_train.processor.media.max_pixels = 12 * 28 * 28
    return config


def test_the_released_spec_trains_it(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the pixels that its data hook takes, and every weight read from the folder."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "out"))
    (tmp_path / "spec.toml").write_text(SPEC.replace("WORLD", str(world)))
    words = [
        "train",
        "--spec",
        str(tmp_path / "spec.toml"),
        *SMALL,
        "--",
        "dataloader_train.dataset.video_fps=optional",
    ]
    assert main(words) == 0, capsys.readouterr().err
    (report,) = (tmp_path / "out").rglob("load_report.json")
    media = load(str(report.parent)).tree.dataloader_train.processor.media
    assert (media.fps, media.max_pixels) == (1.0, 81_920)
    loaded = json.loads(report.read_text())
    assert (loaded["missing"], loaded["unexpected"], loaded["initialised"]) == ([], [], [])
    assert len(read_losses(report.parent)) == 2


def test_it_learns_and_goes_on_exactly(world: Path, whole: Path, tmp_path: Path) -> None:
    losses = read_losses(whole)
    assert losses[-1][1] < 0.9 * losses[0][1]
    config = config_of(world)
    config.trainer.max_iter = 3
    Trainer(config, run_folder=tmp_path).train()
    assert Trainer(config_of(world), run_folder=tmp_path).train() is Outcome.FINISHED
    require_same_end(tmp_path, whole, 6)


def test_an_export_answers_as_transformers_does(
    world: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate` of the run and of the export, `infer`, and plain transformers with the seconds of a grid's time."""
    out = tmp_path / "out"
    assert main(["export", str(whole), "-o", str(out), "--dtype", "float32"]) == 0
    stated = json.loads((out / "video_preprocessor_config.json").read_text())
    assert stated["size"] == {"shortest_edge": 12 * 28 * 28, "longest_edge": 12 * 28 * 28}
    how = ["--task", "text", "--metrics", "bleu", "--max-new-tokens", "6", "--dtype", "float32"]
    data = ["--dataset", "LlavaDataset", "--dataset.path", str(world / "data")]
    said = {}
    for name, folder in {"run": whole, "export": out}.items():
        assert main(["evaluate", str(folder), *data, *how, "-o", str(tmp_path / name)]) == 0, capsys.readouterr().err
        rows = json.loads((tmp_path / name / "results.json").read_text())
        said[name] = {row["id"]: row["full_response"] for row in rows}
    assert said["run"] == said["export"] == transformers_says(out, world)
    assert len(said["run"]) == 6
    capsys.readouterr()
    asked = ["--prompt", "Is the clip possible?", "--video", str(world / "data/chat0.mp4")]
    assert main(["infer", str(out), *asked, "--max-new-tokens", "6", "--dtype", "float32"]) == 0
    assert said["export"]["chat0"] in capsys.readouterr().out
    assert main(["quantize", str(out), "-o", str(tmp_path / "small"), "--scheme", "W8A8", "--no-judge"]) == 0
    from_pretrained(tmp_path / "small")
    assert main(["infer", str(tmp_path / "small"), *asked, "--max-new-tokens", "6"]) == 0


@torch.no_grad()
def transformers_says(folder: Path, world: Path) -> dict[str, str]:
    """One question after the other, with nothing of ours but the inputs."""
    model, found = from_pretrained(folder).eval(), {}
    processor = ChatProcessor.Config().build(folder=folder)
    assert processor.media is not None
    dataset = LlavaDataset.Config(path=str(world / "data")).build()
    for index in range(len(dataset)):
        prompt = processor.prompt(question(dataset.turns(index)))
        given: dict[str, Any] = {"input_ids": prompt.input_ids[None], "mm_token_type_ids": prompt.token_types[None]}
        if prompt.video_patches is not None:
            given["pixel_values_videos"] = processor.media.normalize(prompt.video_patches, "video")
            given |= {"video_grid_thw": prompt.video_grids, "second_per_grid_ts": prompt.video_seconds}
        if prompt.image_patches is not None:
            given["pixel_values"] = processor.media.normalize(prompt.image_patches, "image")
            given["image_grid_thw"] = prompt.image_grids
        out = model.generate(**given, max_new_tokens=6, do_sample=False)
        text = processor.tokenizer.decode(out[0, prompt.num_tokens :], skip_special_tokens=True)
        found[dataset.place(index)[0]] = text.strip()
    return found


def test_adapters_on_all_linear_layers(world: Path, tmp_path: Path) -> None:
    """As PEFT has them beside the base, and merged: the same logits."""
    config = config_of(world)
    config.trainer.max_iter, config.scheduler.cycle_lengths = 2, [2]
    config.scheduler.warm_up_steps = [0]
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_target_modules = True, 4, "all-linear"
    model.activation_checkpointing.mode = "full"
    config.optimizer.lr, config.checkpoint.save_weights = 0.05, "trained"
    Trainer(config, run_folder=tmp_path / "run").train()
    for words in (["--format", "adapter", "-o", str(tmp_path / "adapter")], ["-o", str(tmp_path / "merged")]):
        assert main(["export", str(tmp_path / "run"), "--dtype", "float32", *words]) == 0
    base, merged = logits(from_pretrained(world / "model")), logits(from_pretrained(tmp_path / "merged"))
    assert (merged - base).abs().max() > 1e-3 * base.abs().max()
    adapted = PeftModel.from_pretrained(from_pretrained(world / "model"), tmp_path / "adapter")
    assert (logits(adapted.get_base_model()) - merged).abs().max() < 1e-5 * merged.abs().max()
