"""Runs of AdamW8bit: exact resume, another number of processes, and losses close to those of AdamW."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import toy_runs
from runs import Runs

STEPS = 6
LAST = f"checkpoints/iter_{STEPS:09d}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("adamw_8bit"), family="flux", steps=STEPS)
    runs.start("whole", job=job(1, STEPS))
    yield runs
    runs.close()


def job(ranks: int, steps: int, name: str = "AdamW8bit") -> dict:
    """Two packs of one sample in every step, whatever the number of ranks."""
    settings = {"samples": 1, "cycle": STEPS, "resume_changed": True, "optimizer": {"name": name}}
    return {"ranks": ranks, "accumulate": 2 // ranks, "steps": steps, **settings}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(runs: Runs, ranks: int) -> None:
    whole = "whole" if ranks == 1 else "two"
    if ranks == 2:
        runs.start("two", job=job(2, STEPS))
    for steps in (3, STEPS):
        runs.start(f"parts_{ranks}", job=job(ranks, steps))
    toy_runs.require_same_end(runs.folder / f"parts_{ranks}", runs.folder / whole, STEPS)
    saved = toy_runs.read_checkpoint(runs.folder / whole / LAST)
    codes = [name for name, tensor in saved.items() if tensor.dtype == torch.uint8 and name.startswith("optim/")]
    assert len(codes) >= 8
    assert all(f"{name}_scale" in saved for name in codes)


def test_one_two_one_ranks_equal_an_uninterrupted_run(runs: Runs) -> None:
    said = ""
    for number, ranks in enumerate((1, 2, 1), start=1):
        said += runs.start("resharded", job=job(ranks, 2 * number))
    for now, before in ((2, 1), (1, 2)):
        assert f"was saved by {before} data-parallel processes, and now there are {now}" in said
    whole, resharded = (toy_runs.read_losses(runs.folder / name) for name in ("whole", "resharded"))
    assert [line[1] for line in resharded] == pytest.approx([line[1] for line in whole], rel=1e-4)


def test_losses_are_close_to_those_of_adamw(runs: Runs) -> None:
    runs.start("plain", job=job(1, STEPS, "AdamW"))
    plain, found = (toy_runs.read_losses(runs.folder / name) for name in ("plain", "whole"))
    assert [line[1] for line in found] == pytest.approx([line[1] for line in plain], rel=1e-2)
    assert found != plain
