"""A run whose latent cache cannot be written is the run without a cache, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_runs

from worldsmith.training.trainer import Outcome, Trainer


def test_a_cache_that_cannot_be_written_costs_a_warning_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same losses to the bit; one line before the first step; the count is in the metrics."""
    world = tiny_runs.make_world(tmp_path / "world", clips=3)
    for name in ("none", "blocked"):
        config = tiny_runs.tiny_config(world, steps=3, save_iter=3, cache=name == "blocked")
        if name == "blocked":
            (world / "latents").write_text("a file is here")
        assert Trainer(config, run_folder=tmp_path / name).train() is Outcome.FINISHED
    assert tiny_runs.read_losses(tmp_path / "blocked") == tiny_runs.read_losses(tmp_path / "none")
    said = [record.getMessage() for record in caplog.records]
    (warning,) = [place for place, line in enumerate(said) if "cannot be read or written" in line]
    assert f"{world / 'latents'} cannot be read or written: Not a directory" in said[warning]
    (last,) = [json.loads(line) for line in (tmp_path / "blocked" / "metrics.jsonl").read_text().splitlines()[-1:]]
    assert 0 < last["loaded"]["cache_unwritten"] <= last["loaded"]["cache_miss"]  # some are read ahead
