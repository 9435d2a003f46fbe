"""A whole run of the generator: real clips, a VAE, a network of a few thousand weights. The loop has its own tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs
import torch
from tiny_runs import read_checkpoint, read_losses, read_validations, tiny_config

from worldsmith.actions.dry_run import plan_run
from worldsmith.config.tree.read_config import from_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.world import stop_world
from worldsmith.training.trainer import Outcome, Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted run of eight steps, saved after 4 and 8."""
    folder = tmp_path_factory.mktemp("whole")
    assert Trainer(tiny_config(world), run_folder=folder).train() is Outcome.FINISHED
    return folder


def test_saved_config_rebuilds_the_run(world: Path, whole: Path, tmp_path: Path) -> None:
    """config.yaml alone gives an equal tree and the same losses, and so does a run without the latent cache."""
    tree = from_yaml((whole / "config.yaml").read_text())
    assert tree == resolve(tiny_config(world))
    tree.trainer.max_iter, tree.dataloader_train.latent_cache = 2, ""
    Trainer(tree, run_folder=tmp_path).train()
    assert read_losses(tmp_path) == read_losses(whole)[:2]


def test_loss_falls(world: Path, tmp_path: Path) -> None:
    config = tiny_config(world, steps=30, save_iter=100)
    Trainer(config, run_folder=tmp_path).train()
    losses = [line[1] for line in read_losses(tmp_path)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_activation_checkpointing_changes_no_bit(world: Path, whole: Path, tmp_path: Path) -> None:
    config = tiny_config(world, steps=2)
    config.scheduler.cycle_lengths = [8]
    config.model.config.activation_checkpointing.mode = "full"
    Trainer(config, run_folder=tmp_path).train()
    assert read_losses(tmp_path) == read_losses(whole)[:2]


def test_it_validates_the_same_from_clips_and_from_the_latent_cache(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Five other clips, encoded by the first run only; the training goes on as without, and so does a resumed run."""
    tiny_runs.make_clips(tmp_path / "other", 5)
    for run, steps in (("uncached", 4), ("cached", 2), ("cached", 4)):
        config = tiny_config(world)
        config.trainer.max_iter = steps
        config.trainer.run_validation, config.trainer.validation_iter = True, 2
        config.dataloader_val = copy.deepcopy(config.dataloader_train)
        config.dataloader_val.dataset.path = str(tmp_path / "other")
        config.dataloader_val.latent_cache = "" if run == "uncached" else str(tmp_path / "latents")
        Trainer(config, run_folder=tmp_path / run).train()
        assert read_losses(tmp_path / run) == read_losses(whole)[:steps]
    lines = read_validations(tmp_path / "cached")
    assert lines == read_validations(tmp_path / "uncached")
    assert [(step, samples) for step, _, _, samples in lines] == [(2, 5), (4, 5)]
    assert len(list((tmp_path / "latents").glob("??/*.safetensors"))) == 5
    assert "in both the validation data and the training data" not in caplog.text


def test_clips_that_are_trained_on_are_said(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another data set file with other words, and two of the same files."""
    lines = (world / "data/video_dataset_file.jsonl").read_text().splitlines(keepends=True)
    (world / "data/two.jsonl").write_text("".join(lines[:2]).replace("moves", "goes on its way"))
    config = tiny_config(world)
    config.trainer.run_validation = True
    config.dataloader_val = copy.deepcopy(config.dataloader_train)
    config.dataloader_val.dataset.path = str(world / "data/two.jsonl")
    Trainer(config, run_folder=tmp_path)
    assert f"2 of 2 samples of {world / 'data/two.jsonl'} are also in the training data" in caplog.text


@pytest.fixture
def process_group() -> Iterator[None]:
    yield
    stop_world()


def test_bfloat16_on_one_process_keeps_float32_masters(
    world: Path, whole: Path, tmp_path: Path, process_group: None
) -> None:
    """FSDP over one rank casts for the computation only; losses stay near those of float32."""
    config = tiny_config(world, steps=2)
    config.scheduler.cycle_lengths = [8]
    config.model.config.precision = "bfloat16"
    Trainer(config, run_folder=tmp_path).train()
    exact, rounded = read_losses(whole)[:2], read_losses(tmp_path)
    for (_, loss, norm, _), (_, near_loss, near_norm, _) in zip(exact, rounded, strict=True):
        assert loss != near_loss
        assert near_loss == pytest.approx(loss, rel=2e-2)
        assert near_norm == pytest.approx(norm, rel=1e-1)
    saved = read_checkpoint(tmp_path / "checkpoints/iter_000000002")
    weights = [tensor for name, tensor in saved.items() if name.startswith("model/")]
    assert {tensor.dtype for tensor in weights} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in weights)


def test_dryrun_plans_without_training(world: Path, tmp_path: Path) -> None:
    """Parameters, checkpoint size and a really read pack are named; nothing is made."""
    config = resolve(tiny_config(world, steps=20))
    config.optimizer.keys_to_select = ["moe_gen"]
    text = "\n".join(plan_run(config, tmp_path / "run", world_size=1))
    trainer_text = ("parameters", "MiB each", "6 windows", "first pack", "its caption is", "(new, random weights)")
    assert [part for part in trainer_text if part not in text] == []
    assert not (tmp_path / "run").exists()
    config.optimizer.keys_to_select = ["moe_gem"]
    with pytest.raises(ValueError, match="moe_gem"):
        list(plan_run(config, tmp_path / "run", world_size=1))
