"""What status.json and messages.jsonl say of a run at every point of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import toy_runs

from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.progress import HeartBeat
from worldsmith.training.trainer import Outcome, Trainer


class Look(Callback):
    """Has the status written at every point, and keeps it."""

    class Config(Callback.Config):
        stop_after: int = 0
        fail_after: int = 0

    config: Config

    def look(self, point: str, trainer: Trainer) -> None:
        beat: Any = trainer.callbacks["heart_beat"]
        beat.file.write()
        status = read(trainer.run_folder)
        self.seen = [*getattr(self, "seen", []), (point, status["state"], status["doing"], status["step"])]

    def on_run_start(self, trainer: Trainer) -> None:
        self.look("run start", trainer)
        validate = trainer.validator.run

        def watched(*arguments: Any, **more: Any) -> Any:
            self.look("validation", trainer)
            return validate(*arguments, **more)

        trainer.validator.run = watched
        save = trainer.state.save

        def saving(**more: Any) -> Any:
            self.look("save", trainer)
            return save(**more)

        trainer.state.save = saving

    def on_train_start(self, trainer: Trainer) -> None:
        self.look("train start", trainer)

    def on_training_step_end(self, trainer: Trainer, step: Any) -> None:
        self.look("step", trainer)
        if trainer.iteration == self.config.fail_after:
            raise RuntimeError("the test fails")
        if trainer.iteration == self.config.stop_after:
            (trainer.run_folder / "STOP").touch()


def read(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_runs.make_world(tmp_path_factory.mktemp("world"))


def trainer(world: Path, run: Path, **look: int) -> Trainer:
    config = toy_runs.validated(toy_runs.toy_config(world, steps=4, save_iter=2), every=2)
    config.trainer.callbacks["heart_beat"] = HeartBeat.Config(every_seconds=1000)
    made = Trainer(config, run_folder=run)
    made.callbacks["look"] = Look(Look.Config(**look), folder=run)
    return made


def test_the_status_follows_the_run(world: Path, tmp_path: Path) -> None:
    run = trainer(world, tmp_path / "run")
    assert not (tmp_path / "run/status.json").exists()
    assert run.train() is Outcome.FINISHED
    assert run.callbacks["look"].seen == [
        ("run start", "starting", "training", 0),
        ("train start", "running", "training", 0),
        ("validation", "running", "validation", 0),
        ("step", "running", "training", 1),
        ("step", "running", "training", 2),
        ("validation", "running", "validation", 2),
        ("save", "running", "saving", 2),
        ("step", "running", "training", 3),
        ("step", "running", "training", 4),
        ("validation", "running", "validation", 4),
        ("save", "running", "saving", 4),
    ]
    end = read(tmp_path / "run")
    assert (end["state"], end["step"], end["max_iter"], end["reason"]) == ("finished", 4, 4, None)
    assert end["remaining_seconds"] == 0
    assert end["started"] < end["updated"]


def test_a_stop_and_a_failure_have_their_reason(world: Path, tmp_path: Path) -> None:
    assert trainer(world, tmp_path / "run", stop_after=1).train() is Outcome.STOPPED
    end = read(tmp_path / "run")
    assert (end["state"], end["step"]) == ("stopped", 1)
    assert "STOP" in end["reason"]
    with pytest.raises(RuntimeError):
        trainer(world, tmp_path / "run", fail_after=2).train()
    end = read(tmp_path / "run")
    assert (end["state"], end["step"], end["reason"]) == ("failed", 2, "RuntimeError: the test fails")
    assert trainer(world, tmp_path / "run").train() is Outcome.FINISHED
    assert read(tmp_path / "run")["reason"] is None


def test_what_the_run_says_is_kept_from_its_start_on(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is said while the run is built, too; and again by the run that goes on."""
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        trainer(world, tmp_path / "run", stop_after=1).train()
    said = [record.getMessage() for record in caplog.records]
    lines = [json.loads(line) for line in (tmp_path / "run/messages.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == said
    assert any(text.startswith("run folder   ") for text in said)
    assert (lines[-1]["step"], lines[-1]["level"]) == (1, "info")
    assert lines[-1]["text"].startswith("stopped and saved after step 1")
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        trainer(world, tmp_path / "run").train()
    assert len((tmp_path / "run/messages.jsonl").read_text().splitlines()) == len(caplog.records)
