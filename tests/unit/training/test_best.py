"""The best checkpoint, and the end of a run whose validations no longer get better: also over resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import toy_runs

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.progress import HeartBeat
from worldsmith.training.trainer import Outcome, Trainer
from worldsmith.training.validation import BestSoFar


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


class Fail(Callback):
    """Ends the process's training in the middle of a step, once."""

    class Config(Callback.Config):
        after: int = 0

    config: Config

    def on_before_optimizer_step(self, trainer: Trainer, step: Any) -> None:
        if self.config.after and trainer.iteration == self.config.after:
            raise RuntimeError("the test fails")


class Scripted:
    """Validations that find what the test says, by step; the rest of a validation is as ever."""

    def __init__(self, trainer: Trainer, values: Sequence[float]) -> None:
        self.trainer, self.values, self.run_really = trainer, values, trainer.validator.run

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        found = self.run_really(*arguments, **more)
        found.metrics["val/loss"] = self.values[self.trainer.iteration - 1]
        return found


def trainer(world: Path, run: Path, values: Sequence[float], *, fail: int = 0, **settings: Any) -> Trainer:
    """A run of eight steps, validated after each, saved every fourth, of which only the newest checkpoint is kept."""
    config = toy_runs.validated(toy_runs.toy_config(world, steps=8, save_iter=settings.pop("save_iter", 4)), every=1)
    config.trainer.run_validation_on_start = False
    config.trainer.early_stop_patience = settings.pop("patience", None)
    config.trainer.callbacks["heart_beat"] = HeartBeat.Config()
    config.checkpoint.keep_best, config.checkpoint.keep_latest_k = "val/loss", 1
    config.checkpoint.async_save = False
    for name, value in settings.items():
        setattr(config.checkpoint, name, value)
    made = Trainer(config, run_folder=run)
    made.callbacks["fail"] = Fail(Fail.Config(after=fail), folder=run)
    made.validator.run = Scripted(made, values)
    return made


def best(run: Path) -> str:
    return (run / "checkpoints/best_checkpoint.txt").read_text().strip()


def kept(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("iter_*"))


VALUES = [5.0, 3.0, 4.0, 2.0, math.nan, 2.0, 2.5, 2.25]


@pytest.mark.parametrize("background", [False, True])
def test_the_best_checkpoint_is_saved_when_it_is_found_and_outlives_later_ones(
    world: Path, tmp_path: Path, background: bool
) -> None:
    assert trainer(world, tmp_path, VALUES, async_save=background).train() is Outcome.FINISHED
    assert (best(tmp_path), kept(tmp_path)) == ("iter_000000004", [4, 8])


def test_the_greatest_value_is_the_best_where_that_is_said(world: Path, tmp_path: Path) -> None:
    trainer(world, tmp_path, VALUES, best_mode="max").train()
    assert (best(tmp_path), kept(tmp_path)) == ("iter_000000001", [1, 8])


def test_commands_and_runs_take_the_best_by_name(world: Path, tmp_path: Path) -> None:
    trainer(world, tmp_path, VALUES).train()
    asked = tmp_path / "checkpoints/best"
    assert find_model(asked).iteration == 4
    assert open_weights(str(asked)).describe.endswith("iter_000000004")
    (tmp_path / "checkpoints/best_checkpoint.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"set checkpoint\.keep_best"):
        find_model(asked)


@pytest.mark.parametrize(("fail", "save_iter"), [(1, 4), (2, 4), (3, 4), (5, 4), (6, 4), (5, 1), (6, 1)])
def test_a_run_that_goes_on_judges_as_one_that_never_stopped(
    world: Path, tmp_path: Path, fail: int, save_iter: int
) -> None:
    """Wherever it fails; it starts again from the last checkpoint, before which it may have found a better one."""
    values = [5.0, 3.0, 4.0, 2.0, 6.0, 5.0, 7.0, 1.0]
    with pytest.raises(RuntimeError):
        trainer(world, tmp_path, values, fail=fail, patience=3, save_iter=save_iter).train()
    assert trainer(world, tmp_path, values, patience=3, save_iter=save_iter).train() is Outcome.FINISHED
    assert (best(tmp_path), kept(tmp_path)) == ("iter_000000004", [4, 7])
    assert json.loads((tmp_path / "status.json").read_text())["step"] == 7


def test_a_run_that_goes_back_before_its_best_looks_for_it_again(world: Path, tmp_path: Path) -> None:
    """The best is damaged, so that the run goes back to the one before, whose best was another."""
    with pytest.raises(RuntimeError):
        trainer(world, tmp_path, [3.0, 9.0, 9.0, 2.0, 9.0], fail=5, keep_latest_k=None, save_iter=2).train()
    assert (best(tmp_path), kept(tmp_path)) == ("iter_000000004", [1, 2, 4])
    next((tmp_path / "checkpoints/iter_000000004/model").glob("*.distcp")).write_bytes(b"")
    again = trainer(world, tmp_path, [3.0, 9.0, 9.0, 4.0, 9.0, 9.0, 9.0, 9.0], keep_latest_k=None, save_iter=2)
    assert (again.iteration, best(tmp_path)) == (2, "iter_000000001")
    again.train()
    assert best(tmp_path) == "iter_000000001"


def test_patience_ends_the_run_and_its_second_start_says_so(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [3.0, 2.0, 2.0, 4.0, 1.0, 1.0, 1.0, 1.0]
    assert trainer(world, tmp_path, values, patience=2).train() is Outcome.FINISHED
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", 4)
    why = "finished early, after 4 of 8 steps: 2 validations without a better val/loss than 2.0000 after step 2"
    assert why in status["reason"]
    assert kept(tmp_path) == [2, 4]
    with caplog.at_level("INFO", logger="worldsmith"):
        assert trainer(world, tmp_path, values, patience=2).train() is Outcome.FINISHED
    assert why in caplog.messages[-1]
    assert json.loads((tmp_path / "status.json").read_text()) == status
    assert trainer(world, tmp_path, values, patience=4).train() is Outcome.FINISHED
    assert (best(tmp_path), kept(tmp_path)) == ("iter_000000005", [5, 8])


def test_a_best_that_nothing_measures_is_refused(world: Path, tmp_path: Path) -> None:
    config = toy_runs.toy_config(world)
    config.checkpoint.keep_best = "val/loss"
    with pytest.raises(ConfigError, match="the run does not validate"):
        Trainer(config, run_folder=tmp_path)
    config = toy_runs.validated(toy_runs.toy_config(world))
    config.trainer.early_stop_patience = 2
    with pytest.raises(ConfigError, match="no metric defines what is better"):
        Trainer(config, run_folder=tmp_path)
    config.checkpoint.keep_best, config.model.config.ema.enabled = "val_ema/loss", False
    with pytest.raises(ConfigError, match="there are no EMA weights"):
        Trainer(config, run_folder=tmp_path)
    config.checkpoint.keep_best = "loss"
    with pytest.raises(ConfigError, match="a validation metric"):
        Trainer(config, run_folder=tmp_path)
    with pytest.raises(UserError, match="'val/los' is not a validation metric; available: val/loss"):
        BestSoFar("val/los", "min").record(1, {"val/loss": 1.0})
