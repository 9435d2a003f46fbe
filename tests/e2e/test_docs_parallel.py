"""The commands of docs/parallel.md work as they stand, and its table has the defaults of the config."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.config.sections import ParallelismConfig

PAGE = (Path(__file__).parents[2] / "docs/parallel.md").read_text(encoding="utf-8")
COMMANDS, JOB, OFFLOADED = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
CLIPS = "worldsmith dataset moving-shapes my_clips --clips 3 --val-clips 0 --num-frames 5"


def test_the_table_has_every_degree_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w.-]+) \|", PAGE, flags=re.MULTILINE))
    config = ParallelismConfig()
    assert rows == {field.name: str(getattr(config, field.name)).replace("False", "false") for field in fields(config)}


def test_the_plan_shows_the_degrees_and_refuses_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "my_clips")
    assert main(CLIPS.split()[1:]) == 0
    monkeypatch.setenv("WORLD_SIZE", "")  # put back in the end
    words = next(line for line in COMMANDS.splitlines() if "--dryrun" in line).split()
    assert main(words[1:]) == 0
    (promised,) = re.findall(r"`(processes .*?)`:?\.", PAGE)
    assert promised in capsys.readouterr().out
    for processes, degree, message in (
        ("6", 4, "for 6 these are possible: 1, 2, 3, 6"),
        (
            "3",
            3,
            "4 attention heads and 2 key and value heads cannot be divided evenly",
        ),
    ):
        degrees = f"model.config.parallelism.context_parallel_shard_degree={degree}"
        assert main([processes if word == "8" else word for word in [*words[1:-1], degrees]]) == 2
        assert message in capsys.readouterr().err


def test_offloaded_weights_are_in_host_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "my_clips")
    assert main(CLIPS.split()[1:]) == 0
    assert main(shlex.split(OFFLOADED)[1:]) == 0
    assert re.search(r"states .*weights 1.2 MiB.* MiB in host RAM", capsys.readouterr().out)


def test_the_job_is_a_script_of_bash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the options of the command, and the words that each machine launches."""
    monkeypatch.setenv("DATASET_PATH", "my_clips")
    words, place = JOB.strip().split(" > ")
    assert main(words.split()[1:]) == 0
    (tmp_path / place).write_text(capsys.readouterr().out)
    assert subprocess.run(["bash", "-n", tmp_path / place], check=False).returncode == 0
    lines = (tmp_path / place).read_text().splitlines()
    said = ("nodes=2", "gpus-per-node=8", "time=4:00:00", "cpus-per-task=64", "requeue", "open-mode=append")
    assert {f"#SBATCH --{option}" for option in said} <= set(lines)
    assert "    --nnodes 2 --nproc-per-node 8 train vision_sft_tiny &" in lines


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_run(tmp_path: Path) -> None:
    """Two processes share the tokens of every pack, for two steps; the log counts each sample once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name in ("WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT", "WORLDSMITH_LATENT_CACHE", "WORLD_SIZE"):
        environment.pop(name, None)
    commands = f"{CLIPS}\n{COMMANDS.strip()} trainer.max_iter=2 dataloader_train.max_sequence_length=1200"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("outputs/**/checkpoints/iter_000000002")), done.stderr
