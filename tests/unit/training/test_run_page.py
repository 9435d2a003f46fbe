"""The page of a run while it goes on: made at the start, now and then, and at the end, and never in the way."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import toy_runs

from worldsmith.training.callbacks import run_reports
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.run_reports import RunPage
from worldsmith.training.run_config import default_callbacks
from worldsmith.training.trainer import Outcome, Trainer


class Look(Callback):
    """Reads the page at some points, and fails if asked."""

    class Config(Callback.Config):
        fail_after: int = 0

    config: Config

    def on_train_start(self, trainer: Trainer) -> None:
        self.titles = [title(trainer.run_folder)]

    def on_training_step_end(self, trainer: Trainer, step: Any) -> None:
        if trainer.iteration == self.config.fail_after:
            raise FloatingPointError("the loss is <b>gone</b>")


def title(folder: Path) -> str:
    if not (folder / "report.html").exists():
        return ""
    (found,) = re.findall(r"<title>(.*?)</title>", (folder / "report.html").read_text())
    return str(found)


def start(tmp_path: Path, **look: int) -> Trainer:
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"))
    config.trainer.callbacks = {**default_callbacks(), "look": Look.Config(**look)}
    return config.build(run_folder=tmp_path / "run")


def test_the_page_stands_from_the_start_and_has_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trainer = start(tmp_path)
    assert trainer.train() is Outcome.FINISHED
    assert trainer.callbacks["look"].titles == ["run: starting, step 0"]  # type: ignore[attr-defined]
    assert title(tmp_path / "run") == "run: finished, step 8"
    assert f"report       {(tmp_path / 'run/report.html').resolve()}" in caplog.messages


def test_a_run_that_fails_says_why_on_its_page(tmp_path: Path) -> None:
    trainer = start(tmp_path, fail_after=3)
    with pytest.raises(FloatingPointError):
        trainer.train()
    assert title(tmp_path / "run") == "run: failed, step 3"
    html = (tmp_path / "run/report.html").read_text()
    assert "FloatingPointError: the loss is &lt;b&gt;gone&lt;/b&gt;" in html


def test_the_lock_of_the_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process loses a POSIX lock with any handle that it closes: the run's own page must not look at it."""
    opened = []
    monkeypatch.setattr("worldsmith.monitor.page.status.in_use", lambda folder: opened.append(folder))
    start(tmp_path).train()
    assert opened == []


def test_a_page_that_cannot_be_made_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **more: Any) -> None:
        raise RuntimeError("no template")

    monkeypatch.setattr("worldsmith.monitor.page.run_page.page_of", fail)
    assert start(tmp_path).train() is Outcome.FINISHED
    assert sum("the HTML report cannot be rebuilt" in message for message in caplog.messages) == 1


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    process_time = staticmethod(time.process_time)


def test_a_rebuild_is_a_process_of_its_own_that_costs_a_hundredth_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(tmp_path)
    trainer.train()
    clock = Clock()
    monkeypatch.setattr(run_reports, "time", clock)
    callback = RunPage.Config(every_seconds=30).build(folder=tmp_path / "run/run_page")
    callback._schedule_rebuild(0.0)
    step: Any = None
    clock.now += 29
    callback.on_training_step_end(trainer, step)
    assert callback.child is None
    clock.now += 1
    status = tmp_path / "run/status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "stopped"}))
    callback.on_training_step_end(trainer, step)
    assert callback.child is not None
    callback._collect_rebuild(0)  # waits
    assert callback.child is None
    assert title(tmp_path / "run") == "run: stopped, step 8"
    assert not callback.has_failed
    assert callback.due >= clock.now + 30
    callback._schedule_rebuild(7.0)
    assert callback.due == clock.now + 700


def test_a_rebuild_that_fails_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = start(tmp_path)
    callback = RunPage.Config().build(folder=tmp_path)
    for _ in range(2):
        callback.child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
        callback._collect_rebuild(0)
    said = [message for message in caplog.messages if "HTML report" in message]
    assert said == [
        "the HTML report cannot be rebuilt, the run continues without it: "
        "the process that builds the report ended with exit code 3"
    ]
    trainer.lock.release()


def test_it_can_be_left_out(tmp_path: Path) -> None:
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"), steps=4)
    config.trainer.callbacks["run_page"] = RunPage.Config(enabled=False)
    config.build(run_folder=tmp_path / "run").train()
    assert not (tmp_path / "run/report.html").exists()


def test_its_settings_are_free_to_change(tmp_path: Path) -> None:
    world = toy_runs.make_world(tmp_path / "world")
    toy_runs.toy_config(world, steps=4).build(run_folder=tmp_path / "run").train()
    config = toy_runs.toy_config(world, steps=4)
    config.trainer.max_iter = 5
    config.trainer.callbacks["run_page"] = RunPage.Config(enabled=False)
    assert config.build(run_folder=tmp_path / "run").train() is Outcome.FINISHED
