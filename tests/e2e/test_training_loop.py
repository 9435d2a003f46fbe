"""examples/train.py: a training loop without `Trainer` that saves and resumes exactly."""

from __future__ import annotations

import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples/train.py"


def losses(output: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+): loss (\S+)$", output, flags=re.MULTILINE)}


def test_a_killed_run_resumes_with_the_losses_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run that is killed is a process of its own; the others share this one."""

    def train(name: str, steps: int) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / name), "--steps", str(steps)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    command = [sys.executable, "-u", str(SCRIPT), str(tmp_path / "killed"), "--steps", "10000"]
    first = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            first += line
            if line.startswith("step 3"):
                process.kill()
    assert process.returncode == -signal.SIGKILL
    resumed = max(losses(first)) // 2 * 2  # it saves every second step
    steps = resumed + 3
    whole = losses(train("whole", steps))
    assert list(whole) == list(range(1, steps + 1))
    assert len(set(whole.values())) == steps
    second = train("killed", steps)
    assert re.match(rf"Resuming from step ({resumed}|{resumed - 2})\n", second)  # the kill may come before the save
    assert max(losses(second)) == steps
    assert {**losses(first), **losses(second)} == whole
    assert losses(first).items() <= whole.items()
    assert train("killed", steps) == f"Resuming from step {steps}\n"


def test_the_script_is_short() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 70
