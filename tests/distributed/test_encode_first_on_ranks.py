"""Two ranks that encode first share the samples, learn the same bits, and have no encoder next to their networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encode_first_runs
import pytest
import torch
from launch import launch

FAMILIES = ("cosmos3", "wan")
MODES = ("always", "never")
"""In this order: encoders of a run that has ended may still be in memory."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    worlds, out = tmp_path_factory.mktemp("worlds"), tmp_path_factory.mktemp("out")
    for family in FAMILIES:
        encode_first_runs.make_world(family, worlds / family)
    cases = [f"{family}.{mode}" for mode in MODES for family in FAMILIES]
    launch(Path(encode_first_runs.__file__), 2, [str(worlds), str(out), *cases])
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks(family: str, out: Path) -> None:
    found: dict[str, list[Any]] = {
        mode: [torch.load(out / f"{family}.{mode}" / f"{rank}.pt", weights_only=False) for rank in range(2)]
        for mode in MODES
    }
    entries = len(encode_first_runs.files_of(out / f"{family}.always" / "cache"))
    for plain, first in zip(found["never"], found["always"], strict=True):
        assert first["losses"] == plain["losses"]
        assert len(first["losses"]) == 4
        for own, its in zip(first["gradients"], plain["gradients"], strict=True):
            assert all(torch.equal(*pair) for pair in zip(own, its, strict=True))
        assert any(plain["beside"].values())
        assert set().union(*first["beside"].values()) == set()
        assert first["counts"] == {"cache_unwritten": 0, "cache_late": 0}
        assert 0 < first["written"] < entries
    assert sum(first["written"] for first in found["always"]) >= entries  # both may encode the empty caption
