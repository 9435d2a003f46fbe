"""Validation by two ranks, whose sharded network they gather together however many packs each of them has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_runs
from runs import Runs

STEPS = 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("validation"), samples=5)
    yield runs
    runs.close()


def job(ranks: int, **further: object) -> dict:
    return {"ranks": ranks, "accumulate": 2 // ranks, "samples": 2, "layers": 2, "steps": STEPS, **further}


def run(runs: Runs, name: str, ranks: int, **further: object) -> Path:
    runs.start(name, job=job(ranks, **further))
    return runs.folder / name


def require_same_validations(found: Path, expected: Path, samples: int) -> None:
    ours, theirs = toy_runs.read_validations(found), toy_runs.read_validations(expected)
    assert [(line[0], line[3]) for line in ours] == [(step, samples) for step in (0, 3, 4)]
    for line, other in zip(ours, theirs, strict=True):
        assert line[1:3] == pytest.approx(other[1:3], rel=1e-6)


def test_two_ranks_find_what_one_finds_and_train_as_without(runs: Runs) -> None:
    """Five samples: one rank has two packs, the other one."""
    one, two = (run(runs, f"on_{ranks}", ranks, validate=3) for ranks in (1, 2))
    require_same_validations(two, one, samples=5)
    without = run(runs, "without", 2)
    assert toy_runs.read_validations(without) == []
    toy_runs.require_same_end(two, without, STEPS)


def test_a_rank_without_a_sample_takes_part(runs: Runs, tmp_path: Path) -> None:
    world = toy_runs.make_world(tmp_path / "world", rows=5)
    file = world / toy_runs.VAL_ROWS
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    one, two = (run(runs, f"one_sample_on_{ranks}", ranks, validate=3, world=str(world)) for ranks in (1, 2))
    require_same_validations(two, one, samples=1)


def test_a_run_of_two_that_is_killed_validates_the_same_after_its_resume(runs: Runs) -> None:
    settings = job(2, validate=1)
    runs.start("unbroken", job=settings, save_iter=1)
    runs.start("killed", job=settings, save_iter=1, async_save=False, kill=(3, "backward"))
    runs.start("killed", job=settings, save_iter=1)
    found, expected = (toy_runs.read_validations(runs.folder / name) for name in ("killed", "unbroken"))
    assert found == expected
    assert [line[0] for line in found] == [0, 1, 2, 3, 4]
