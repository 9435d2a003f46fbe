"""Two gloo ranks upload to an object store and resume from it; only rank 0 uses the store."""

from __future__ import annotations

from pathlib import Path

import pytest
import store_ranks
import toy_runs
from launch import launch
from object_store import connected, serving

pytest.importorskip("s3fs")
pytest.importorskip("moto")


def test_two_ranks_resume_from_the_store_and_agree_on_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = toy_runs.make_world(tmp_path / "world")
    with serving() as server, connected(server, monkeypatch, tmp_path / "cache"):
        launch(Path(store_ranks.__file__), 2, [str(world), str(tmp_path)])
    toy_runs.require_same_end(tmp_path / "second/run", tmp_path / "whole/run")
    for rank in range(2):
        assert "UPLOAD FAILED: iter_000000012 to s3://bucket/ranks" in (tmp_path / f"save_error_{rank}").read_text()
        assert "denies access" in (problem := (tmp_path / f"user_error_{rank}").read_text())
        assert "cannot be downloaded" in problem
    assert not (tmp_path / "third").exists()
