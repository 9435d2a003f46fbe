"""A whole run of a reasoner: clips, a picture, text alone; from the weights of its model folder to an exported one."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import reasoner_runs
import torch
from kill_workers import KillWorkers
from peft import PeftModel
from reasoner_runs import reasoner_config
from reasoners import from_pretrained, logits
from safetensors.torch import load_file
from toy_runs import read_checkpoint, read_losses

from worldsmith.actions.dry_run import plan_run
from worldsmith.cli.main import main
from worldsmith.config.tree.read_config import from_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reasoner_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted run of eight steps, saved after 4 and 8."""
    folder = tmp_path_factory.mktemp("whole")
    assert Trainer(reasoner_config(world), run_folder=folder).train() is Outcome.FINISHED
    return folder


def test_it_starts_from_its_model_folder_and_learns(world: Path, whole: Path) -> None:
    """Every weight is read from there; the answers of six conversations are soon more likely."""
    report = json.loads((whole / "load_report.json").read_text())
    assert report["folder"] == str(world / "model")
    assert (report["missing"], report["unexpected"], report["initialised"], report["skipped"]) == ([], [], [], [])
    losses = [line[1] for line in read_losses(whole)]
    assert losses[-1] < 0.6 * losses[0]


def test_dryrun_says_what_would_be_read(world: Path, whole: Path, tmp_path: Path) -> None:
    config = resolve(reasoner_config(world))
    text = "\n".join(plan_run(config, tmp_path / "run", world_size=1))
    count = len(load_file(world / "model" / "model.safetensors"))
    assert f"(new, {world / 'model'})" in text
    assert f"weights      weights from Hugging Face folder {world / 'model'}: {count} tensors loaded" in text
    config.checkpoint.load_path = str(whole)
    text = "\n".join(plan_run(config, tmp_path / "run", world_size=1))
    assert f"weights      checkpoint.load_path = {whole}; model.config.policy.backbone.model_name is ignored" in text
    config.checkpoint.load_path, config.checkpoint.init = None, "scratch"
    assert "(new, random weights)" in "\n".join(plan_run(config, tmp_path / "run", world_size=1))
    assert not (tmp_path / "run").exists()


def test_saved_config_rebuilds_the_run(world: Path, whole: Path, tmp_path: Path) -> None:
    tree = from_yaml((whole / "config.yaml").read_text())
    assert tree == resolve(reasoner_config(world))
    tree.trainer.max_iter = 2
    Trainer(tree, run_folder=tmp_path).train()
    assert read_losses(tmp_path) == read_losses(whole)[:2]


def test_activation_checkpointing_changes_no_bit(world: Path, whole: Path, tmp_path: Path) -> None:
    config = reasoner_config(world, steps=2)
    config.scheduler.cycle_lengths = [8]
    config.model.config.activation_checkpointing.mode = "full"
    Trainer(config, run_folder=tmp_path).train()
    assert read_losses(tmp_path) == read_losses(whole)[:2]


def test_workers_that_are_killed_change_no_bit(world: Path, whole: Path, tmp_path: Path) -> None:
    trainer = Trainer(reasoner_config(world, workers=2), run_folder=tmp_path)
    trainer.callbacks["kill"] = KillWorkers(KillWorkers.Config(), folder=tmp_path)
    assert trainer.train() is Outcome.FINISHED
    assert read_losses(tmp_path) == read_losses(whole)
    last_line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last_line["loaded"]["workers_died"] > 2


def test_what_load_path_keeps_from_being_read_is_said(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights are those of the other run."""
    config = reasoner_config(world)
    config.checkpoint.load_path = str(whole)
    with caplog.at_level(logging.INFO):
        trainer = Trainer(config, run_folder=tmp_path)
    unread = "; model.config.policy.backbone.model_name is ignored"
    assert f"checkpoint.load_path = {whole}{unread}" in caplog.text
    expected = read_checkpoint(whole / "checkpoints/iter_000000008")
    assert all(
        torch.equal(tensor, expected[f"model/{name}"]) for name, tensor in trainer.state.weights.state_dict().items()
    )


def test_the_export_without_a_format_is_a_folder_for_transformers(world: Path, whole: Path, tmp_path: Path) -> None:
    """Its weights are the average, to the bit."""
    assert main(["export", str(whole), "-o", str(tmp_path / "out"), "--dtype", "float32"]) == 0
    average = read_checkpoint(whole / "checkpoints/iter_000000008")
    for name, parameter in from_pretrained(tmp_path / "out").named_parameters():
        assert torch.equal(parameter, average[f"model/net_ema.{name}"]), name


def test_an_export_reads_videos_as_its_run_did(world: Path, tmp_path: Path) -> None:
    """The run's settings are in the preprocessor files: the tokens are the same without a flag."""
    config = reasoner_config(world, steps=3)
    config.dataloader_train.processor.media.nframes = 2
    Trainer(config, run_folder=tmp_path / "run").train()
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 0
    turns = config.dataloader_train.dataset.build().turns(0)
    in_run = config.dataloader_train.processor.build(folder=world / "model").encode(turns)
    asked = ChatProcessor.Config().build(folder=tmp_path / "out").encode(turns)
    assert torch.equal(asked.input_ids, in_run.input_ids)
    assert torch.equal(asked.video_patches, in_run.video_patches)
    assert len(asked.input_ids) < len(ChatProcessor.Config().build(folder=world / "model").encode(turns).input_ids)


def test_a_run_with_adapters_is_exported_both_ways(world: Path, tmp_path: Path) -> None:
    """As an adapter, which belongs to the model folder that the run started from, and merged: the same logits."""
    config = reasoner_config(world, steps=3)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_target_modules = True, 4, "q_proj,v_proj,attn.qkv"
    model.ema.enabled = False
    config.optimizer.lr, config.checkpoint.save_weights = 0.05, "trained"
    Trainer(config, run_folder=tmp_path / "run").train()
    for words in (["--format", "adapter", "-o", str(tmp_path / "adapter")], ["-o", str(tmp_path / "merged")]):
        assert main(["export", str(tmp_path / "run"), "--dtype", "float32", *words]) == 0
    base, merged = logits(from_pretrained(world / "model")), logits(from_pretrained(tmp_path / "merged"))
    assert (merged - base).abs().max() > 1e-3 * base.abs().max()
    adapted = PeftModel.from_pretrained(from_pretrained(world / "model"), tmp_path / "adapter")
    assert (logits(adapted.get_base_model()) - merged).abs().max() < 1e-5 * merged.abs().max()
    assert json.loads((tmp_path / "adapter" / "worldsmith.json").read_text())["base_model"] == str(world / "model")
    for name in ("run", "merged"):
        out = ["-o", str(tmp_path / f"small_{name}"), "--scheme", "W8A8", "--no-judge"]
        assert main(["quantize", str(tmp_path / name), *out]) == 0
    small, same = (load_file(tmp_path / f"small_{name}" / "model.safetensors") for name in ("run", "merged"))
    assert small.keys() == same.keys()
    assert all(torch.equal(value, same[key]) for key, value in small.items())
