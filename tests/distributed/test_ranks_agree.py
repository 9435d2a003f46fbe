"""Ranks that differ in settings, data or storage, and a folder that is in use: all of them end, and say why."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import ranks_agree
import toy_runs
from launch import launch

from worldsmith.distributed.world import World
from worldsmith.training.run_folder import RunLock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    lock = RunLock(folder / "held", World())
    launch(Path(ranks_agree.__file__), 2, [str(toy_runs.make_world(folder / "world", rows=3)), str(folder)])
    lock.release()
    return folder


TOLD = {
    "other_settings": r"UserError: \[E122\] the processes of this run have different settings:\n"
    r"  optimizer.lr: 0.03 for process 0, 0.5 for process 1\n  trainer.max_iter: 1 for process 0, 6 for process 1",
    "other_folders": r"UserError: process 1 on \S+ does not see the files that process 0 on \S+ "
    r"writes to the run folder \S+: it must be on storage that all nodes share",
    "held_folder": rf"UserError: \[E106\] the run folder \S+ is in use: process {os.getpid()} on ",
    "other_data": r"UserError: \[E122\] the processes of this run see different data:\n  process 0: 3 samples in \S+\n"
    r"  process 1: 2 samples in ",
    "unseen_files": r"SaveError: \[E110\] the checkpoint iter_000000002 could not be written .* process 0 "
    r"does not see \S+: it must be on storage that all nodes share",
}


@pytest.mark.parametrize("case", list(TOLD))
def test_every_rank_is_told_and_none_hangs(folder: Path, case: str) -> None:
    for rank in (0, 1):
        told = (folder / f"{case}_{rank}.txt").read_text()
        assert re.match(TOLD[case], told), told


def test_nothing_is_left_or_lost(folder: Path) -> None:
    """No record of a run that did not start, no checkpoint that is not whole, and the older one is still there."""
    for name in ("held", "node_0", "other_data"):
        assert not (folder / name / "config.yaml").exists()
    assert not (folder / "other_settings").exists()
    assert sorted(path.name for path in (folder / "unseen_0").iterdir()) == ["iter_000000001"]


def test_a_run_without_a_name_has_one_folder(folder: Path) -> None:
    """Both ranks train in it, and its config has its name, with which it can be resumed."""
    assert [(folder / f"no_name_{rank}.txt").read_text() for rank in (0, 1)] == ["nothing", "nothing"]
    (run,) = (folder / "named_by_time/tests/tiny").iterdir()
    assert [(folder / f"trained_in_{rank}.txt").read_text() for rank in (0, 1)] == [f"{run} {run.name}"] * 2
    assert run.name in (run / "config.yaml").read_text()
    assert (run / "checkpoints/iter_000000001").is_dir()
