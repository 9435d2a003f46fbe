"""A run that is killed (SIGKILL) at any moment and started again equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import tiny_runs  # noqa: E402

STEPS = 40


class Runs:
    """Starts runs in processes of their own, over one small data set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = tiny_runs.make_world(folder / "world")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(SUPPORT / "fork_server.py")]
        self.errors = (folder / "stderr.txt").open("w+")
        self.server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def start(self, name: str, *, workers: int = 0, save_iter: int = 20, kill: tuple[int, str] | None = None) -> int:
        """The exit code of one process of the run `name`."""
        run = {"world": str(self.world), "run": str(self.folder / name)}
        job = {**run, "steps": STEPS, "workers": workers, "save_iter": save_iter, "kill": kill}
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        code = int(self.server.stdout.readline())
        self.errors.seek(0)
        assert code == (0 if kill is None else -signal.SIGKILL), self.errors.read()
        return code

    def done(self, name: str) -> int:
        """How many steps the newest visible checkpoint of a run holds."""
        pointer = self.folder / name / "checkpoints" / "latest_checkpoint.txt"
        return int(pointer.read_text().strip().removeprefix("iter_")) if pointer.exists() else 0

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait()
        self.errors.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("resume"))
    runs.start("whole")
    yield runs
    runs.close()


def require_equal(runs: Runs, name: str) -> None:
    """Losses of all 40 steps, weights, average, optimizer, schedule, counters and RNG are the same bits."""
    whole, resumed = runs.folder / "whole", runs.folder / name
    losses = tiny_runs.read_losses(resumed)
    assert [line[0] for line in losses] == list(range(1, STEPS + 1))
    assert losses == tiny_runs.read_losses(whole)
    last = f"checkpoints/iter_{STEPS:09d}"
    expected, found = tiny_runs.read_checkpoint(whole / last), tiny_runs.read_checkpoint(resumed / last)
    assert found.keys() == expected.keys()
    assert {"model/net", "model/net_ema", "optim/state"} <= {key.partition(".")[0] for key in found}
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different
    data = "dataloader/rank_0.json"
    assert (resumed / last / data).read_text() == (whole / last / data).read_text()


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_in_step_21_and_during_a_save(runs: Runs, workers: int) -> None:
    """SIGKILL between backward and update of step 21; goes on from 20; SIGKILL during the save of step 40; goes on."""
    name = f"twice_{workers}"
    runs.start(name, workers=workers, kill=(21, "backward"))
    assert runs.done(name) == 20
    runs.start(name, workers=workers, kill=(40, "save:6"))
    assert runs.done(name) == 20
    runs.start(name, workers=workers)
    require_equal(runs, name)


def test_ten_random_kills_in_one_run(runs: Runs) -> None:
    """One run is killed ten times, at random steps and moments, with 0 and with 2 workers in turn."""
    kill_often(runs, "random", kills=10, workers=[0, 2], seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_forty_random_kills_in_one_run(runs: Runs, workers: int) -> None:
    """The same, longer, with one number of workers throughout."""
    kill_often(runs, f"often_{workers}", kills=40, workers=[workers], seed=2)


def kill_often(runs: Runs, name: str, *, kills: int, workers: list[int], seed: int) -> None:
    """Starts and kills a run again and again, then lets it finish."""
    chance = random.Random(seed)
    for number in range(kills):
        step = min(runs.done(name) + chance.randint(1, 7), STEPS)
        phase = f"save:{chance.randint(1, 15)}" if step % 5 == 0 else chance.choice(["start", "backward", "end"])
        runs.start(name, workers=workers[number % len(workers)], save_iter=5, kill=(step, phase))
    assert runs.done(name) > 0
    runs.start(name, workers=workers[-1], save_iter=5)
    require_equal(runs, name)
