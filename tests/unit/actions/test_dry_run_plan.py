"""A dry run has the plan of a step on the GPU that is named or there, and is quick without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_runs import make_world, toy_config

from worldsmith.actions.dry_run import DryRun
from worldsmith.cli.main import main
from worldsmith.config.errors import UserError
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    return resolve(toy_config(make_world(tmp_path / "world")))


def lines_of(run: Any, **asked: Any) -> list[str]:
    action: DryRun = DryRun.Config(**asked).build(run=Loaded(run))
    return list(action.lines())


def test_the_plan_of_a_step_follows_the_dry_run(run: Any) -> None:
    quick, lines = lines_of(run), lines_of(run, gpu="h100-80", gpus=2)
    assert "processes    2 (replicate 1 × shard 2)" in lines
    start = next(number for number, line in enumerate(lines) if line.startswith("plan "))
    assert lines[start].startswith("plan         simulated step on 2 × h100-80: 4 samples with 16 tokens, the largest")
    assert any(line.startswith("memory       FITS: ") for line in lines[start:])
    words = [line[:13].strip() for line in lines[start:]]
    assert [word for word in words if word] == ["plan", "memory", "peak", "fits on", "step", "time"]
    assert quick[-1].startswith("plan         add --gpu h100-80")
    assert [line[:13] for line in quick[:-1]] == [line[:13] for line in lines[:start]]


def test_the_gpu_of_the_machine_needs_no_word(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsmith.actions.dry_run.present_device", lambda: "cuda:0")
    monkeypatch.setattr("worldsmith.actions.dry_run.word_of_device", lambda device: "l40s")
    monkeypatch.setattr("worldsmith.training.start_lines.lack_of_memory", lambda *about: None)
    assert any(line.startswith("plan         simulated step on 1 × l40s: ") for line in lines_of(run))


def test_a_step_that_cannot_be_planned_is_a_note(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*about: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("worldsmith.actions.dry_run.make_plan", fail)
    *_, last = lines_of(run, gpu="24GB")
    assert last == "note         no estimates: the step cannot be simulated: RuntimeError: no such kernel"


def test_a_gpu_that_nobody_knows_is_refused_at_once(run: Any) -> None:
    with pytest.raises(UserError, match="unknown GPU 'h1000'"):
        next(DryRun.Config(gpu="h1000").build(run=Loaded(run)).lines())


def test_words_that_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "vision_sft_tiny", "--gpu", "h200"]) == 2
    assert "--gpu requires --dryrun" in capsys.readouterr().err
