"""The loop around a reasoner: check, tune, train, evaluate, gaps, train on, evaluate, quantize, lineage."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.config.declare import class_tags
from worldsmith.config.recipes import packages
from worldsmith.config.recipes.packages import registered

ROOT = Path(__file__).parents[2]
RECORDER = """#!/usr/bin/env bash
printf '%q ' "$(basename "$0")" "$@" >> "$COMMANDS"; echo >> "$COMMANDS"
"""


def commands(folder: Path) -> list[list[str]]:
    """What `DEMO=quick` would run, as the script itself says it."""
    programs, file = folder / "programs", folder / "commands"
    programs.mkdir()
    for name in ("worldsmith", "python"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    (folder / "examples").mkdir()
    for name in ("demo_loop.sh", "_environment.sh", "loop_scores.py"):
        shutil.copy(ROOT / "examples" / name, folder / "examples")
    environment = {"PATH": f"{programs}:{os.defpath}", "DEMO": "quick", "COMMANDS": str(file)}
    subprocess.run(["bash", str(folder / "examples/demo_loop.sh")], env=environment, check=True, capture_output=True)
    return [shlex.split(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_loop_lead_from_data_to_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name: found for name, found in registered().items() if found.module.startswith("worldsmith.")}
    monkeypatch.setattr(
        packages, "_RECIPES", ours
    )  # trials know the recipes of this process, and so those of other tests
    monkeypatch.setattr(class_tags, "_TRUSTED", {"worldsmith"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", str(tmp_path / "examples/data/falling_questions_quick"))
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", "outputs/train")
    *steps, scores = commands(tmp_path)
    for program, *words in steps:
        assert program == "worldsmith"
        assert main(words) == 0, words
    out = tmp_path / "outputs/loop/falling_questions_quick"
    gaps, after = json.loads((out / "gaps.json").read_text()), json.loads((out / "after/metrics.json").read_text())
    assert after["against"]["shared"] == after["total"] == 4
    assert len(gaps) == json.loads((out / "gaps.summary.json").read_text())["gaps"]
    said = subprocess.run([sys.executable, *scores[1:]], capture_output=True, text=True, check=True).stdout
    assert said.startswith("yes/no accuracy on 4 questions about clips that nothing has learned from: 0.")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_loop_ends_with_a_better_reasoner() -> None:
    """From clearly wrong to nearly always right on clips that nothing has learned from, also in four bits."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = ["bash", str(ROOT / "examples/demo_loop.sh")]
    done = subprocess.run(script, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    before, after, quantized = (
        float(last.split(f" {word}")[0].split()[-1]) for word in ("before", "after", "quantized")
    )
    assert before <= 0.85
    assert after >= 0.95
    assert quantized >= after - 0.02
