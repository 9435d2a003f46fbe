"""Clips that are encoded: what is said of them, and which steps tell nothing of those to come."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tiny_runs

from worldsmith.assets import asset_path
from worldsmith.tasks.registry import task_of
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.step import StepResult
from worldsmith.training.trainer import Trainer


class Filling(Callback):
    """Notes of each step whether it fills the cache."""

    found: list[bool]

    class Config(Callback.Config):
        pass

    def on_train_start(self, trainer: Trainer) -> None:
        self.found = []

    def on_training_step_end(self, trainer: Trainer, step: StepResult) -> None:
        self.found.append(any(map(trainer.task.fills_cache, step.inputs.batches)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("world"), clips=3)


@pytest.mark.parametrize("cache", [True, False])
def test_the_first_step_says_that_it_encodes_and_no_other_does(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache: bool
) -> None:
    monkeypatch.setattr("worldsmith.tasks.clip_task.LOG_INTERVAL", 0.0)
    config = tiny_runs.tiny_config(world, steps=8, save_iter=8, cache=cache)
    config.trainer.callbacks["filling"] = Filling.Config()
    trainer = Trainer(config, run_folder=tmp_path / "run")
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        trainer.train()
    said = [line for line in caplog.messages if line.startswith("first step: ")]
    packs = config.trainer.grad_accum_iter
    assert 1 <= len(said) < packs * 3  # the clips of the first step but for its very first
    assert said[0].endswith("clips of the pack are encoded")
    found = trainer.callbacks["filling"].found
    assert (found[0], found[-1]) == (cache, False)


@pytest.mark.parametrize("is_random", [True, False])
@pytest.mark.parametrize("is_tiny", [True, False])
def test_random_weights_and_a_tiny_vae_are_said_to_be_what_they_are(
    world: Path, tmp_path: Path, is_random: bool, is_tiny: bool
) -> None:
    config = tiny_runs.tiny_config(world, steps=1)
    config.checkpoint.load_path = None if is_random else "a/base"
    config.model.config.tokenizer.vae_path = str(asset_path("tiny_vae_natural") if is_tiny else tmp_path / "vae")
    task = task_of(config.model.name)(
        model=config.model.config.build(device="meta"), objective=config.objective, data=config.dataloader_train
    )
    lines = list(task.describe_weights(config, {}))
    if not is_random and not is_tiny:
        assert lines == []
        return
    (label, said), *others = lines
    assert (label, others) == ("expect", [])
    assert ("random weights" in said, "checkpoint.load_path" in said) == (is_random, is_random)
    assert ("a tiny VAE" in said, "tokenizer.vae_path" in said) == (is_tiny, is_tiny)
