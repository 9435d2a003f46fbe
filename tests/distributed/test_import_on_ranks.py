"""Weights of other formats read by several ranks, each its own shards, straight into the sharded network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs
from runs import Runs
from safetensors.torch import load_file
from stored_models import write_tiny_base

from worldsmith.tools.export.convert import convert


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """With a reasoner, and the native base checkpoint made from it in several files, beside the runs."""
    runs = Runs(tmp_path_factory.mktemp("imports"), samples=5, family="tiny")
    write_tiny_base(runs.folder / "reasoner")
    convert(str(runs.folder / "reasoner"), runs.folder / "native", to="native", seed=42, max_shard_size=30_000)
    yield runs
    runs.close()


def test_two_ranks_start_from_the_weights_of_one(runs: Runs) -> None:
    """The first step's rate is almost zero: its checkpoint holds what was loaded, copied and initialised, and that is
    the same (to 1e-8) for one rank and two, and for both formats of the same weights; the losses agree too."""
    for source in ("reasoner", "native"):
        start_on_one_and_two(runs, source)


def start_on_one_and_two(runs: Runs, source: str) -> None:
    for ranks in (1, 2):
        job = {"ranks": ranks, "accumulate": 2 // ranks, "samples": 2, "steps": 1, "cycle": 8}
        settings = {"init": "pretrained", "load_path": str(runs.folder / source), "save_iter": 1}
        runs.start(f"{source}_{ranks}", job=job, **settings)
    one, two = (runs.folder / f"{source}_{ranks}" for ranks in (1, 2))
    expected, found = (tiny_runs.read_checkpoint(run / "checkpoints/iter_000000001") for run in (one, two))
    weights = [name for name in expected if name.startswith("model/")]
    assert len(weights) == 2 * 34
    assert not [name for name in weights if (found[name] - expected[name]).abs().max() > 1e-8]
    first = tiny_runs.read_checkpoint(runs.folder / "reasoner_1" / "checkpoints/iter_000000001")
    assert not [name for name in weights if (found[name] - first[name]).abs().max() > 1e-8]
    assert tiny_runs.read_losses(two)[0][1] == pytest.approx(tiny_runs.read_losses(one)[0][1], rel=1e-5)
    report = json.loads((two / "load_report.json").read_text())
    copies, initial = (12, 8) if source == "reasoner" else (0, 0)
    assert (len(report["copied"]), len(report["initialised"])) == (copies, initial)
    assert len(report["loaded"]) == 34 - initial
    assert len(report["started_live"]) == 34


def test_two_ranks_of_a_reasoner_start_from_its_model_folder(tmp_path: Path) -> None:
    """The first step's rate is almost zero: its checkpoint holds the folder's weights (to 1e-8)."""
    runs = Runs(tmp_path, family="reasoner")
    try:
        for ranks in (1, 2):
            job = {"ranks": ranks, "accumulate": 2 // ranks, "samples": 2, "steps": 1, "cycle": 8}
            runs.start(f"run_{ranks}", job=job, save_iter=1)
    finally:
        runs.close()
    stored = load_file(runs.world / "model" / "model.safetensors")
    one, two = (tiny_runs.read_checkpoint(runs.checkpoint(f"run_{ranks}", 1)) for ranks in (1, 2))
    for found in (one, two):
        weights = {name.removeprefix("model/net."): p for name, p in found.items() if name.startswith("model/net.")}
        assert weights.keys() == stored.keys()
        assert not [name for name, value in stored.items() if (weights[name] - value).abs().max() > 1e-8]
    losses = [tiny_runs.read_losses(runs.folder / f"run_{ranks}")[0][1] for ranks in (1, 2)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
