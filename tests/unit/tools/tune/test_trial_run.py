"""The process of a trial: its validations as they come, why it has failed, and what it sees of the machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from worldsmith.tools.tune.trial_run import TrialRun, environment_of, find_reason, start_process


def line(step: int, loss: float | None, **more: object) -> str:
    return json.dumps({"step": step, "val/loss": loss, "val/by": {"yes": 2 * (loss or 0)}, **more}) + "\n"


def test_validations_are_read_as_they_come_and_from_the_start_when_the_file_is_another(tmp_path: Path) -> None:
    run, file = TrialRun(tmp_path, [], "val/loss"), tmp_path / "metrics.jsonl"
    assert run.values() == []
    file.write_text(line(0, 9.0) + '{"step": 1, "loss": 3.0}\n' + line(2, 3.0))
    assert run.values() == [3.0]  # without the one before the first step
    with file.open("a") as more:
        more.write(line(4, None) + line(6, 1.5)[:10])
    assert run.values() == [3.0, None]
    with file.open("a") as more:
        more.write(line(6, 1.5)[10:])
    assert run.values() == [3.0, None, 1.5]
    assert run.validations.names == {"val/loss", "val/by/yes"}
    (tmp_path / "aside").write_text(line(2, 3.0))  # a run that goes on writes the file anew
    os.replace(tmp_path / "aside", file)
    assert run.values() == [3.0]
    nested = TrialRun(tmp_path, [], "val/by/yes")
    assert nested.values() == [6.0]


def test_a_process_that_is_killed_says_by_what(tmp_path: Path) -> None:
    run = TrialRun(tmp_path / "0003", [], "val/loss")
    with (tmp_path / "0003.log").open("wb") as log:
        run.process = start_process(["sleep", "60"], os.environ, log.fileno(), log.fileno())
    assert run.code() is None
    assert os.getpgid(run.process.pid) == run.process.pid  # the terminal's Ctrl-C does not reach it
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert run.reason() == "killed by SIGKILL, perhaps because memory ran out"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("step 1\nworldsmith: error: no such file\n", "no such file"),
        (
            "error: the loss is not finite\n\nWhat it means:\n  too high a rate\n",
            "the loss is not finite What it means:",
        ),
        ("Traceback\n  File x\ntorch.OutOfMemoryError: CUDA out of memory\n", "torch.OutOfMemoryError: CUDA out of"),
        ("step 1\nstep 2\n", "step 2"),
        ("", "its log is empty"),
    ],
)
def test_why_a_run_has_failed_is_read_from_its_log(log: str, why: str) -> None:
    assert find_reason(log.splitlines()).startswith(why)


def test_each_slot_has_a_device_of_its_own_or_its_share_of_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGINAIRE_OUTPUT_ROOT", "/elsewhere")
    monkeypatch.delenv("WORLDSMITH_OUTPUT_ROOT", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    found = [environment_of(slot, 2, Path("/studies"), ["2", "5"]) for slot in (0, 1)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["2", "5"]
    assert [one["WORLDSMITH_OUTPUT_ROOT"] for one in found] == ["/studies"] * 2
    assert all("IMAGINAIRE_OUTPUT_ROOT" not in one for one in found)
    assert environment_of(0, 1, Path(), ["2", "5"])["CUDA_VISIBLE_DEVICES"] == "2,5"
    found = [environment_of(slot, 2, Path(), ["2", "5", "6", "7"], 2) for slot in (0, 1)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["2,5", "6,7"]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = int(environment_of(1, 2, Path(), [])["OMP_NUM_THREADS"])
    assert threads == max(1, len(os.sched_getaffinity(0)) // 2)
    assert "OMP_NUM_THREADS" not in environment_of(0, 1, Path(), [])
