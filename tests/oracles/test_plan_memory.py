"""What a simulation says of memory and operations against real runs: to 5 % by a tracker, and by PyTorch's profiler.

The profiler counts what the allocator gives, also inside kernels; it does not see what NumPy makes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import plan_cases
import plan_ranks
import pytest
from launch import launch
from plan_cases import FAMILIES, case_batches, case_config

from worldsmith.distributed.world import World
from worldsmith.planning.simulation.simulated_run import simulate

ON_ONE = ["cosmos3.bits4", "vision_language.full.fill50", "cogvideox.selective.lora", "flux"]
ON_TWO = ["cosmos3.bf16.average", "wan.twice.every_pack"]
ALL_ON_ONE = [
    ".".join(filter(None, parts))
    for parts in product(FAMILIES, ("", "full", "selective"), ("", "lora"), ("", "fill50", "fill20"))
]
ALL_ON_TWO = [
    *(f"{family}.{mode}" for family in FAMILIES for mode in ("bf16", "full.lora", "twice")),
    *("cosmos3.cp2.full.twice", "cosmos3.twice.every_pack", "cosmos3.bf16.bits4", "wan.bits4.full"),
]
ALL_ON_FOUR = [
    *("cosmos3.hsdp.bf16.full", "cosmos3.hsdp.cp2", "cosmos3.cp2.bf16.lora", "cosmos3.twice.average", "wan.hsdp"),
    *("vision_language.hsdp.twice.every_pack", "flux.selective.average", "cogvideox.full.twice"),
]
Measured = Callable[[int, str], list[dict[str, Any]]]


def slow(cases: list[str], quick: list[str]) -> list[Any]:
    return [*quick, *(pytest.param(case, marks=pytest.mark.slow) for case in cases if case not in quick)]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = plan_cases.write_parts(tmp_path_factory.mktemp("parts"))
    plan_cases.use_parts(folder)
    return folder


@pytest.fixture(scope="module")
def measured(parts: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """What the first and the last rank of a real run found; all cases of a number of ranks run at once."""
    cases: dict[int, list[str]] = {}
    for item in request.session.items:
        call = getattr(item, "callspec", None)
        if item.module is request.module and call is not None and "ranks" in call.params:
            cases.setdefault(call.params["ranks"], []).append(call.params["case"])
    folders: dict[int, Path] = {}

    def get(ranks: int, case: str) -> list[dict[str, Any]]:
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"ranks_{ranks}")
            launch(Path(plan_ranks.__file__), ranks, [str(parts), str(folders[ranks]), *cases[ranks]], timeout=900)
        return [json.loads((folders[ranks] / f"{case}.{rank}.json").read_text()) for rank in (0, ranks - 1)]

    return get


@pytest.mark.parametrize("case", slow(ALL_ON_ONE, ON_ONE))
def test_one_process_holds_what_was_predicted(case: str, parts: Path) -> None:
    config = case_config(case)
    predicted = simulate(config, case_batches(case, config), ranks=1).to_json()
    require_equal(predicted, plan_ranks.carry_out(case, World()))


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        *((2, case) for case in ON_TWO),
        *(pytest.param(2, case, marks=pytest.mark.slow) for case in ALL_ON_TWO),
        *(pytest.param(4, case, marks=pytest.mark.slow) for case in ALL_ON_FOUR),
    ],
)
def test_each_rank_holds_what_was_predicted(ranks: int, case: str, measured: Measured) -> None:
    config = case_config(case)
    batches = case_batches(case, config)
    for rank, found in zip((0, ranks - 1), measured(ranks, case), strict=True):
        require_equal(simulate(config, batches, ranks=ranks, rank=rank).to_json(), found)


def require_equal(predicted: dict[str, Any], found: dict[str, Any]) -> None:
    """Every phase to 5 %, of building what stays; the whole step by the profiler too."""
    real = found["work"]
    assert predicted["hardware_flops"] == real["hardware_flops"]
    assert predicted["model_flops"] == real["model_flops"]
    for phase, other in zip(predicted["phases"], real["phases"], strict=True):
        assert phase["name"] == other["name"]
        if phase["name"] == "building":  # files are read meanwhile
            assert phase["kinds"]["parameters"] == other["kinds"]["parameters"]
            continue
        assert phase["peak"] == pytest.approx(other["peak"], rel=0.05), (phase, other)
        for kind in ("parameters", "moments", "average"):
            assert phase["kinds"].get(kind, 0) == pytest.approx(other["kinds"].get(kind, 0), rel=0.05), kind
    peak = max(phase["peak"] for phase in predicted["phases"] if phase["name"] != "building")
    assert peak == pytest.approx(found["allocated"], rel=0.05)
