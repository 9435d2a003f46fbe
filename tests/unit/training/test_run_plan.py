"""A run is planned beside it: by a process of its own, whose plan is there when it is made, and never in the way."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import toy_runs

from worldsmith.distributed.gpus import find_gpu
from worldsmith.monitor.page.plan_check import plan_checks
from worldsmith.monitor.page.run_files import read_run
from worldsmith.training.callbacks import run_reports
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.callbacks.run_reports import RunPage, RunPlan, plan_command
from worldsmith.training.run_config import monitors
from worldsmith.training.trainer import Outcome, Trainer


class WaitForPlan(Callback):
    """Keeps the end of the first step waiting for the plan."""

    def on_training_step_end(self, trainer: Trainer, step: Any) -> None:
        child = trainer.callbacks["plan"].child  # type: ignore[attr-defined]
        if child is not None:
            self.priority = os.getpriority(os.PRIO_PROCESS, child.pid)
            child.wait()


def start(tmp_path: Path) -> Trainer:
    """A run that waits for its plan. Its planner has the priority 1: a busy machine would not let it end otherwise."""
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"))
    config.trainer.callbacks = {
        "metrics": Metrics.Config(tensorboard=False),
        "plan": RunPlan.Config(least_parameters=0),
        "run_page": RunPage.Config(),
    }
    trainer: Trainer = config.build(run_folder=tmp_path / "run")
    trainer.callbacks["wait"] = WaitForPlan(WaitForPlan.Config(), folder=tmp_path)
    return trainer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reports, "LOWEST", 1)


def said_of_the_plan(caplog: pytest.LogCaptureFixture) -> list[str]:
    beginnings = ("plan  ", "the run could not be planned", "the run ends before the background estimate")
    return [message for message in caplog.messages if message.startswith(beginnings)]


def test_a_run_is_planned_and_at_the_end_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    support = Path(toy_runs.__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{support}")
    monkeypatch.setenv("WORLD_SIZE", "1")
    trainer = start(tmp_path)
    assert trainer.train() is Outcome.FINISHED
    assert trainer.callbacks["wait"].priority == 1  # type: ignore[attr-defined]
    run = read_run(tmp_path / "run")
    assert (run.plan["family"], run.plan["gpus"], run.plan["step"]["tokens"]) == ("toy", 1, 16)
    first, last = said_of_the_plan(caplog)
    assert first.startswith("plan         peak memory ")
    assert ": fits" in first
    assert last.startswith("plan         tokens of a step 16, planned 16; a checkpoint ")
    checks = {check.kind: check for check in plan_checks(run)}
    assert checks.keys() == {"memory", "tokens", "checkpoint"}
    assert (checks["tokens"].ratio, checks["tokens"].is_good) == (1, True)
    assert checks["memory"].measured is not None
    assert checks["memory"].measured >= 0
    assert "Plan against measured" in (tmp_path / "run/report.html").read_text()


def test_a_run_that_ends_first_ends_the_planner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trainer = start(tmp_path)
    callback = trainer.callbacks["plan"]
    assert isinstance(callback, RunPlan)
    callback.child = child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    callback.on_train_end(trainer)
    assert child.poll() is not None
    assert said_of_the_plan(caplog) == [
        "the run ends before the background estimate of its memory and time is complete; to estimate them: "
        f"worldsmith plan {tmp_path / 'run'}"
    ]
    assert not (tmp_path / "run/plan.json").exists()
    trainer.lock.release()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit('first\\nno such family\\n')", "no such family"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('no JSON')", "plan.json: Expecting value"),
    ],
)
def test_a_plan_that_cannot_be_made_is_said_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, program: str, why: str
) -> None:
    monkeypatch.setattr(
        "worldsmith.training.callbacks.run_reports.plan_command", lambda *about: [sys.executable, "-c", program]
    )
    assert start(tmp_path).train() is Outcome.FINISHED
    (said,) = said_of_the_plan(caplog)
    assert said.startswith("the run could not be planned and continues without a plan: ")
    assert why in said
    assert not (tmp_path / "run/plan.json").exists()


def test_what_is_small_or_not_wanted_is_not_planned(tmp_path: Path) -> None:
    assert isinstance(monitors()["plan"], RunPlan.Config)
    for number, config in enumerate((monitors()["plan"], RunPlan.Config(enabled=False, least_parameters=0))):
        trainer = start(tmp_path / str(number))
        trainer.callbacks["plan"] = config.build(folder=tmp_path / str(number) / "run/plan")
        assert trainer.train() is Outcome.FINISHED
        assert list((tmp_path / str(number)).rglob("plan.json")) == []


def test_the_command_trusts_what_the_run_does(tmp_path: Path) -> None:
    words = plan_command(tmp_path, 8, "cpu")
    place, gpu = words.index("plan"), words[-2]
    assert words[1:3] == ["-m", "worldsmith"]
    assert ("--trust", "toy_family") in zip(words[3:place:2], words[4:place:2])  # beside what other tests trust
    assert words[place:-2] == ["plan", str(tmp_path / "config.yaml"), "--gpus", "8", "--gpu"]
    assert find_gpu(gpu).memory > 2**20
    assert words[-1] == "--json"


def test_figures_say_what_the_process_held_before_its_network(tmp_path: Path) -> None:
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"), steps=4)
    config.build(run_folder=tmp_path / "run").train()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert all(2**20 < line["memory_before_bytes"] < 1.1 * line["peak_memory_bytes"] for line in lines)
