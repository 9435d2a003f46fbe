"""What several processes hold and save, to the byte, with weights whose first axis they cannot share evenly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import state_ranks
from launch import launch

FEW = {3: ["wan.masters.trained"]}
OTHERS = ("plain", "adapters.trained", "every_pack", "AdamW8bit")
MANY = {
    2: [f"{family}.{variant}" for family in state_ranks.FAMILIES for variant in ("plain", "bfloat16", "adapters32")],
    3: [f"{family}.{variant}" for family in state_ranks.FAMILIES for variant in OTHERS],
    4: [f"{family}.replicated" for family in state_ranks.FAMILIES],
}


def require_foretold(folder: Path, ranks: int, cases: list[str]) -> None:
    for family in {case.partition(".")[0] for case in cases}:
        state_ranks.make_world(family, folder / "worlds" / family)
    out = folder / "out"
    out.mkdir()
    launch(Path(state_ranks.__file__), ranks, [str(folder / "worlds"), str(out), *cases])
    for case in cases:
        for rank in range(ranks):
            found = json.loads((out / f"{case}.{rank}.json").read_text())
            state_ranks.require_equal(case, folder / "worlds", found, ranks, rank)


@pytest.mark.parametrize("ranks", FEW)
def test_each_rank_holds_and_saves_what_is_foretold(ranks: int, tmp_path: Path) -> None:
    require_foretold(tmp_path, ranks, FEW[ranks])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", MANY)
def test_so_it_is_for_every_family(ranks: int, tmp_path: Path) -> None:
    require_foretold(tmp_path, ranks, MANY[ranks])
