"""Validation of a generator on real clips: the same curves whatever happens to the run and whoever reads the data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from metrics_files import read_metrics

from worldsmith.training.callbacks.base import Callback
from worldsmith.training.trainer import Outcome, Trainer


class Fail(Callback):
    def on_before_optimizer_step(self, trainer: Trainer, step: Any) -> None:
        if trainer.iteration == 3:
            raise RuntimeError("the test fails")


def config(world: Path, *, workers: int) -> Trainer.Config:
    tree = tiny_runs.tiny_config(world, steps=4, save_iter=2, workers=workers)
    tree.trainer.run_validation, tree.trainer.validation_iter = True, 1
    tree.dataloader_val = dataclasses.replace(tree.dataloader_train, seed=7)
    return tree


def curves(run: Path) -> list[dict[str, Any]]:
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "val/loss" in line]
    return [{name: value for name, value in line.items() if name != "val/seconds"} for line in lines]


def test_curves_are_the_same_after_a_resume_with_another_number_of_workers(tmp_path: Path) -> None:
    world = tiny_runs.make_world(tmp_path / "world")
    assert Trainer(config(world, workers=0), run_folder=tmp_path / "whole").train() is Outcome.FINISHED
    broken = Trainer(config(world, workers=2), run_folder=tmp_path / "broken")
    broken.callbacks["fail"] = Fail(Fail.Config(), folder=tmp_path)
    with pytest.raises(RuntimeError):
        broken.train()
    assert Trainer(config(world, workers=1), run_folder=tmp_path / "broken").train() is Outcome.FINISHED
    expected = curves(tmp_path / "whole")
    assert [line["step"] for line in expected] == [1, 2, 3, 4]
    assert all(line["val/loss_by_noise"] and line["val_ema/loss_by_noise"] for line in expected)
    assert curves(tmp_path / "broken") == expected
