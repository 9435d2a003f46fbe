"""Families whose network is a class of diffusers, in every arrangement of processes, to 1e-5 of one plain process.

That process equals the training formula of diffusers: tests/oracles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipeline_ranks
import pytest
import torch
from launch import launch
from pipeline_runs import FAMILIES, make_world

from worldsmith.distributed.world import World
from worldsmith.training import parallel

ON_RANKS = {
    2: ["plain", "adapters", "adapters_offloaded", "every_pack", "replicated"],
    4: ["plain", "replicated", "replicated_full"],
}
COMPILED_ON_RANKS = ["aot_full", "adapters_aot_matmuls"]
"""Launched for each family on its own, on two ranks: compiling takes long."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    for family in FAMILIES:
        make_world(family, folder / family)
    return folder


@pytest.fixture(scope="module")
def reference(worlds: Path) -> Any:
    """`reference(case)`: what a plain process finds, with adapters where the case has them."""
    known: dict[str, Any] = {}

    def get(case: str) -> dict[str, Any]:
        family, arrangement = case.split(".")
        name = f"{family}.{'adapters' if arrangement.startswith('adapters') else 'plain'}"
        if name not in known:
            known[name] = pipeline_ranks.run_case(name, worlds, World())
            assert not known[name]["sharded"]
        return known[name]

    return get


@pytest.fixture(scope="module")
def results(worlds: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folders: dict[int, Path] = {}

    def get(ranks: int, case: str) -> dict[str, Any]:
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"ranks_{ranks}")
            cases = [f"{family}.{name}" for family in FAMILIES for name in ON_RANKS[ranks]]
            launch(Path(pipeline_ranks.__file__), ranks, [str(worlds), str(folders[ranks]), *cases])
        result: dict[str, Any] = torch.load(folders[ranks] / f"{case}.pt", weights_only=False)
        assert result["sharded"]
        return result

    return get


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        error = float((found["gradients"][name] - gradient).norm())
        assert error <= 1e-5 * float(gradient.norm()) + 1e-9, f"{name}: off by {error} of {float(gradient.norm())}"


def cases(names: list[str]) -> list[str]:
    return [f"{family}.{name}" for family in FAMILIES for name in names]


@pytest.mark.parametrize(
    "case", ["cogvideox.full", "cogvideox.adapters_full", "flux.full", "wan.full", "ltx_video.matmuls"]
)
def test_one_rank(case: str, worlds: Path, reference: Any) -> None:
    require_equal(pipeline_ranks.run_case(case, worlds, World()), reference(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ltx_video.aot_matmuls", "wan.aot_full"])
def test_layers_are_compiled_with_their_recomputation(case: str, worlds: Path, reference: Any) -> None:
    require_equal(pipeline_ranks.run_case(case, worlds, World()), reference(case))


@pytest.mark.parametrize(
    "case",
    [
        *cases(["adapters_offloaded_full"]),
        *(
            name if name.startswith("flux") else pytest.param(name, marks=pytest.mark.slow)
            for name in cases(["adapters_all_offloaded"])
        ),
    ],
)
def test_offloaded_weights_change_no_bit(case: str, worlds: Path, reference: Any) -> None:
    require_same_bits(pipeline_ranks.run_case(case, worlds, World()), reference(case))


@pytest.mark.parametrize(
    "family", [name if name in ("flux", "wan") else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_offloaded_trained_weights_change_no_bit(family: str, worlds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with FSDP on one rank, which sums the gradients of what all layers use in another order.

    Two ranks show it for every family, below, without recomputation.
    """
    monkeypatch.setattr(parallel, "is_sharded", lambda *_: True)
    found, expected = (
        pipeline_ranks.run_case(f"{family}.{name}", worlds, World()) for name in ("offloaded_full", "full")
    )
    require_same_bits(found, expected)


@pytest.fixture(scope="module")
def offloaded(worlds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks find in all families, from one launch."""
    folder = tmp_path_factory.mktemp("offloaded")
    names = cases(["plain", "offloaded", "adapters", "adapters_all_offloaded"])
    launch(Path(pipeline_ranks.__file__), 2, [str(worlds), str(folder), *names], timeout=580)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_offloaded_weights_change_no_bit_on_two_ranks(family: str, offloaded: Path) -> None:
    for found, expected in (("offloaded", "plain"), ("adapters_all_offloaded", "adapters")):
        pair = (torch.load(offloaded / f"{family}.{name}.pt", weights_only=False) for name in (found, expected))
        require_same_bits(*pair)


def require_same_bits(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["loss"] == expected["loss"]
    assert found["gradients"].keys() == expected["gradients"].keys()
    assert not [
        name for name, value in expected["gradients"].items() if not torch.equal(found["gradients"][name], value)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_offloaded_frozen_weights_change_no_bit_on_two_ranks(family: str, results: Any) -> None:
    require_same_bits(results(2, f"{family}.adapters_offloaded"), results(2, f"{family}.adapters"))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_compiled_with_their_recomputation_on_two_ranks(
    family: str, worlds: Path, reference: Any, tmp_path: Path
) -> None:
    names = [f"{family}.{name}" for name in COMPILED_ON_RANKS]
    launch(Path(pipeline_ranks.__file__), 2, [str(worlds), str(tmp_path), *names], timeout=900)
    for name in names:
        require_equal(torch.load(tmp_path / f"{name}.pt", weights_only=False), reference(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *cases(["full", "selective", "adapters_full", "compiled", "aot_full", "aot_selective", "adapters_aot_matmuls"]),
        *(f"{family}.aot_matmuls" for family in FAMILIES if not family.startswith("wan")),
    ],
)
def test_one_rank_at_length(case: str, worlds: Path, reference: Any) -> None:
    require_equal(pipeline_ranks.run_case(case, worlds, World()), reference(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(ON_RANKS[2]))
def test_two_ranks(case: str, results: Any, reference: Any) -> None:
    require_equal(results(2, case), reference(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(ON_RANKS[4]))
def test_four_ranks(case: str, results: Any, reference: Any) -> None:
    require_equal(results(4, case), reference(case))
