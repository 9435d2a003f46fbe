"""A run that goes on with another number of processes: the same samples in each step, the same losses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import toy_runs
from pipeline_runs import FAMILIES
from runs import Runs

PHASES = ((1, 4), (2, 2), (4, 1), (1, 4))
"""(ranks, packs per step and rank): four samples in every step."""
STEPS = 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("resharding"), samples=5)
    yield runs
    runs.close()


def job(ranks: int, accumulate: int, steps: int) -> dict:
    settings = {"samples": 1, "layers": 2, "cycle": STEPS, "resume_changed": True}
    return {"ranks": ranks, "accumulate": accumulate, "steps": steps, **settings}


def positions(folder: Path) -> dict[int, set[int]]:
    """The samples of each step, over all ranks; every one is used once."""
    steps: dict[int, list[int]] = {}
    for path in folder.glob("positions_*.json"):
        for step, read in json.loads(path.read_text()).items():
            steps.setdefault(int(step), []).extend(read)
    assert all(len(read) == len(set(read)) == 4 for read in steps.values())
    return {step: set(read) for step, read in steps.items()}


def same_losses(found: list[tuple], expected: list[tuple]) -> None:
    assert [line[0] for line in found] == [line[0] for line in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
        assert ours[2] == pytest.approx(theirs[2], rel=1e-4)
        assert ours[3] == theirs[3]


def test_one_two_four_one_ranks_equal_an_uninterrupted_run(runs: Runs) -> None:
    reshard(runs)


@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_pipeline_on_one_two_four_one_ranks_equals_an_uninterrupted_run(family: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path, family=family)
    reshard(runs)
    runs.close()


def reshard(runs: Runs) -> None:
    """Two steps with each number of ranks: losses to 1e-5, the samples of each step and the last weights agree."""
    runs.start("whole", job=job(1, 4, STEPS))
    said = ""
    for number, (ranks, accumulate) in enumerate(PHASES):
        said += runs.start("resharded", job=job(ranks, accumulate, 2 * number + 2))
        done = runs.folder / "resharded"
        for path in done.glob("positions_*.json"):  # of this phase only
            path.rename(done / f"positions_{number}_{path.name}")
    for now, before in ((2, 1), (4, 2), (1, 4)):
        assert f"was saved by {before} data-parallel processes, and now there are {now}" in said
    whole, resharded = runs.folder / "whole", runs.folder / "resharded"
    same_losses(toy_runs.read_losses(resharded), toy_runs.read_losses(whole))
    assert positions(resharded) == positions(whole)
    last = f"checkpoints/iter_{STEPS:09d}"
    expected, found = toy_runs.read_checkpoint(whole / last), toy_runs.read_checkpoint(resharded / last)
    for name in (name for name in expected if name.startswith(("model/", "optim/"))):
        assert (found[name] - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-8, name


@pytest.fixture(scope="module")
def unbroken(runs: Runs) -> str:
    """A run of two ranks that waits for each of its saves, one after every step."""
    runs.start("unbroken", job=job(2, 2, 4), save_iter=1, async_save=False)
    return "unbroken"


def require_same_bits(runs: Runs, name: str, other: str, step: int) -> None:
    found, expected = (toy_runs.read_checkpoint(runs.checkpoint(one, step)) for one in (name, other))
    assert found.keys() == expected.keys()
    assert not [name for name in expected if not torch.equal(expected[name], found[name])]


def test_background_saves_of_two_ranks_equal_synchronous_ones(runs: Runs, unbroken: str) -> None:
    """Bit for bit, every checkpoint, though the next step changes the weights while the one before is written."""
    runs.start("background", job=job(2, 2, 4), save_iter=1, async_save=True)
    for step in range(1, 5):
        require_same_bits(runs, "background", unbroken, step)


@pytest.mark.parametrize("kill", [(3, "backward"), (2, "save:5")])
def test_a_rank_that_is_killed_loses_nothing_complete(runs: Runs, unbroken: str, kill: tuple[int, str]) -> None:
    """The last of two ranks dies in a step or in a save; started again, the run ends bit for bit as the other one."""
    name = f"killed_{kill[0]}"
    runs.start(name, job=job(2, 2, 4), save_iter=1, async_save=False, kill=kill)
    assert runs.usable(name) in (1, 2)
    runs.start(name, job=job(2, 2, 4), save_iter=1)
    require_same_bits(runs, name, unbroken, 4)
    assert toy_runs.read_losses(runs.folder / name) == toy_runs.read_losses(runs.folder / unbroken)
