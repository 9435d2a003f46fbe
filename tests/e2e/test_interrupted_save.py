"""A second Ctrl-C while a checkpoint is written: the run ends at once, without a word of what it was doing."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import toy_runs

from worldsmith.config.tree.plain import to_yaml
from worldsmith.distributed.stop_signals import PREEMPTED, SAME_PRESS, STOP_NOTICE

SUPPORT = Path(__file__).parents[1] / "support"


def wait_for(found: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not found.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("in_background", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_second_ctrl_c_ends_a_run_that_saves(tmp_path: Path, in_background: bool) -> None:
    """Whether the save is that of the stop itself, or one in the background for which it has to wait."""
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "world"), steps=100_000)
    config.checkpoint.save_iter = 1 if in_background else 100_000
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    imports = ["--import", "toy_family", "--import", "slow_disk"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "WORLDSMITH_OUTPUT_ROOT": str(tmp_path / "out"),
        "SLOW_DISK": str(tmp_path / "saves"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "worldsmith", *imports, "train", str(tmp_path / "run.yaml")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(tmp_path / ("saves" if in_background else "out/tests/tiny/run/metrics.jsonl"), process)
        helpers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        wait_for(tmp_path / "saves", process)
        time.sleep(SAME_PRESS + 0.2)
        process.send_signal(signal.SIGINT)
        said = "".join(process.communicate(timeout=20))
        assert process.returncode == 130
        assert said.splitlines()[-1] == "interrupted"
        assert "Traceback" not in said
        assert "Exception ignored" not in said
        assert psutil.wait_procs(helpers, timeout=20)[1] == []
        assert not list((tmp_path / "out").glob("**/iter_*"))
    finally:
        process.kill()


def test_one_ctrl_c_is_acknowledged_and_the_last_line_resumes_the_run(tmp_path: Path) -> None:
    config = toy_runs.toy_config(toy_runs.make_world(tmp_path / "a world"), steps=100_000)
    config.checkpoint.save_iter, config.job.name = 100_000, ""
    (tmp_path / "a run.yaml").write_text(to_yaml(config))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "WORLDSMITH_OUTPUT_ROOT": str(tmp_path / "out"),
    }
    command = [sys.executable, "-m", "worldsmith", "--import", "toy_family", "train", str(tmp_path / "a run.yaml")]
    with subprocess.Popen(
        [*command, "--", "trainer.max_iter=200000"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 100
            while not list((tmp_path / "out").glob("**/metrics.jsonl")) and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[0]
        finally:
            process.kill()
    assert process.returncode == PREEMPTED
    assert f"\n{STOP_NOTICE}\n" in said
    (run,) = (tmp_path / "out/tests/tiny").iterdir()
    resume = said.splitlines()[-1]
    assert shlex.split(resume) == [*command, "--job.name", run.name, "--", "trainer.max_iter=200000"]
    (run / "STOP").touch()  # so that it stops after a step
    again = subprocess.run(resume, shell=True, env=environment, capture_output=True, text=True)
    assert again.returncode == PREEMPTED
    assert again.stdout.splitlines()[-1] == resume
    assert [found.name for found in run.parent.iterdir()] == [run.name]
