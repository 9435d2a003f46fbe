"""A run on two "nodes" of this machine: launched by hand and killed, and as a job of a SLURM that its test makes up."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import toy_runs

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml

PROGRAMS = {
    "sbatch": 'cat > "$JOB"; echo Submitted batch job 1',
    "scontrol": 'if [ "$1" = requeue ]; then echo "$2" >> "$JOB.requeued"; else echo 127.0.0.1; echo 127.0.0.1; fi',
    "srun": """
        shift
        for node in 0 1; do SLURM_NODEID=$node "$@" & nodes+=($!); done
        trap 'kill -USR1 "${nodes[@]}"; heard=yes' USR1
        trap 'kill -TERM "${nodes[@]}"; heard=yes' TERM
        worst=0
        for node in "${nodes[@]}"; do
            while heard=no; wait "$node"; code=$?; [ "$heard" = yes ]; do :; done
            if ((code > worst)); then worst=$code; fi
        done
        exit "$worst\"""",
}
"""SLURM's, on two nodes that are this machine."""


class Run:
    """A run of the toy family, far longer than a test, which saves after every five steps."""

    def __init__(self, place: Path) -> None:
        config = toy_runs.toy_config(toy_runs.make_world(place / "world"), steps=100_000, save_iter=5)
        config.job.wandb_mode = "offline"
        (place / "run.yaml").write_text(to_yaml(config))
        self.words = ["train", "--base", str(place / "run.yaml")]
        self.folder = place / "runs/tests/tiny/run"
        self.started: list[subprocess.Popen[bytes]] = []

    def steps(self) -> list[int]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def saved(self) -> int:
        """The step of the newest checkpoint; 0: there is none."""
        pointer = self.folder / "checkpoints/latest_checkpoint.txt"
        return int(pointer.read_text().strip().removeprefix("iter_")) if pointer.exists() else 0

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen(words, stderr=(self.folder.parents[3] / "said").open("ab")))
        return self.started[-1]

    def wait_for_save(self, after: int = 0) -> None:
        deadline = time.monotonic() + 200
        while self.saved() <= after:
            assert time.monotonic() < deadline, (self.folder.parents[3] / "said").read_text()
            time.sleep(0.05)

    def require_one_wandb_run(self, starts: int) -> None:
        (name,) = (self.folder / "wandb_id.txt").read_text().split()
        files = list(self.folder.glob("wandb/offline-run-*/run-*.wandb"))
        assert [file.name for file in files] == [f"run-{name}.wandb"] * starts

    def require_logs(self, ranks: int, starts: int) -> None:
        """One for each process, with a head for each start; process 0 tells most."""
        logs = sorted((self.folder / "logs").iterdir())
        assert [log.name for log in logs] == [f"rank_{rank:05d}.log" for rank in range(ranks)]
        for rank, log in enumerate(logs):
            heads = [line for line in log.read_text().splitlines() if line.startswith("--- started")]
            assert len(heads) == starts
            assert all(line.endswith(f"rank {rank} of {ranks}") and socket.gethostname() in line for line in heads)
        assert f"step {self.saved()}" in logs[0].read_text()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    pytest.importorskip("wandb")
    support = str(Path(__file__).parents[1] / "support")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    run = Run(tmp_path)
    yield run
    for process in run.started:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def free_port(low: int, high: int) -> int:
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(low, high)))
            return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_of_four_processes_on_two_nodes_is_killed_and_goes_on(run: Run) -> None:
    """One of the processes is killed without a word, later a launcher is asked to stop."""
    port = str(free_port(20_000, 32_000))

    def start() -> list[subprocess.Popen[bytes]]:
        meeting = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
        words = ["worldsmith", "--import", "toy_family", "launch", *meeting]
        return [run.start(*words, "--node-rank", str(node), *run.words) for node in range(2)]

    launchers = start()
    run.wait_for_save()
    ranks = psutil.Process(launchers[1].pid).children()
    assert {process.environ()["RANK"] for process in ranks} == {"2", "3"}
    ranks[0].kill()
    assert [launcher.wait(120) for launcher in launchers] == [1, 1]

    saved = run.saved()
    launchers = start()
    run.wait_for_save(saved)
    launchers[1].send_signal(signal.SIGTERM)
    assert [launcher.wait(120) for launcher in launchers] == [75, 75]
    assert run.steps() == list(range(1, run.saved() + 1))
    run.require_one_wandb_run(starts=2)
    run.require_logs(ranks=4, starts=2)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `sbatch` puts the script of a job."""
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("JOB", str(tmp_path / "job.sh"))
    return tmp_path / "job.sh"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_of_slurm_saves_before_its_end_and_queues_itself_again(
    run: Run, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it was cancelled."""
    number = free_port(20_000, 32_000) - 20_000
    monkeypatch.setenv("SLURM_JOB_ID", str(number))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "here[0-1]")
    assert main(["--import", "toy_family", "launch", "--slurm", "--nnodes", "2", "--time", "10", *run.words]) == 0
    assert subprocess.run(["bash", "-n", job], check=False).returncode == 0

    for starts, asked in enumerate((signal.SIGUSR1, signal.SIGTERM), start=1):
        saved = run.saved()
        batch = run.start("bash", str(job))
        run.wait_for_save(saved)
        batch.send_signal(asked)
        assert batch.wait(120) == 75
        assert job.with_suffix(".sh.requeued").read_text().split() == [str(number)]
        run.require_one_wandb_run(starts)
        run.require_logs(ranks=2, starts=starts)
    assert run.steps() == list(range(1, run.saved() + 1))
