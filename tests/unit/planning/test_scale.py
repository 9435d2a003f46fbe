"""docs/scale.md: its figures are those of the code, its tables and pictures those of its figures."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worldsmith.distributed.gpus import GPUS

ROOT = Path(__file__).parents[3]
H100 = GPUS["h100-80"]


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(ROOT / "scripts"))
    names = ("plot_scale", "scale_runs", "scale_figures")
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def entries(scripts: dict[str, ModuleType]) -> Any:
    return scripts["scale_runs"].load()


def test_the_page_has_the_tables_and_pictures_of_the_figures(scripts: dict[str, ModuleType], entries: Any) -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert scripts["plot_scale"].with_tables(page, entries) == page, "run python scripts/plot_scale.py"
    for name, picture in scripts["plot_scale"].PICTURES.items():
        committed = (ROOT / "docs" / "images" / f"scale_{name}.svg").read_text(encoding="utf-8")
        assert picture(entries) == committed, "run python scripts/plot_scale.py"
        assert f"images/scale_{name}.svg" in page


def test_a_page_without_a_table_is_refused(scripts: dict[str, ModuleType], entries: Any) -> None:
    with pytest.raises(ValueError, match=r"runs: scripts/plot_scale\.py --> 0 times"):
        scripts["plot_scale"].with_tables("# Scale\n", entries)


def test_every_run_is_simulated(scripts: dict[str, ModuleType], entries: Any) -> None:
    assert list(entries) == list(scripts["scale_runs"].ALL)


def test_a_twin_is_simulated_as_it_was(
    scripts: dict[str, ModuleType], entries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other numbers here mean that those of docs/scale.json are old: simulate them again."""
    for name in ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WORLDSMITH_LATENT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    name = "nano_tiny at 64"
    assert_close(scripts["scale_runs"].simulated(scripts["scale_runs"].ALL[name]), entries[name])


def assert_close(found: Any, known: Any, place: str = "") -> None:
    """Equal but for 1 % of a number, and a kilobyte."""
    if isinstance(known, int | float) and not isinstance(known, bool):
        assert found == pytest.approx(known, rel=0.01, abs=1024), place
    elif isinstance(known, dict | list):
        keys = list(known) if isinstance(known, dict) else range(len(known))
        assert len(found) == len(known), place
        for key in keys:
            assert_close(found[key], known[key], f"{place}/{key}")
    else:
        assert found == known, place


@pytest.mark.parametrize(
    ("base", "other", "exact"),
    [
        ("edge", "edge at 64", 1e-3),
        ("edge", "edge at 512 = 64 x 8", 1e-6),
        ("edge", "edge at 4096", 0.05),  # the embedding, which has more rows than ranks, is sent less often
        ("nano", "nano at 4096 = 256 x 16", 1e-3),
    ],
)
def test_the_formulas_say_what_is_simulated(
    scripts: dict[str, ModuleType], entries: Any, base: str, other: str, exact: float
) -> None:
    figures, simulated = scripts["scale_figures"], entries[other]
    found = figures.cost(entries[base], figures.Layout(**simulated["layout"]), H100)
    assert found.peak == pytest.approx(max(phase["peak"] for phase in simulated["phases"]), rel=0.01)
    assert found.work.moved_bytes == pytest.approx(simulated["moved_bytes"], rel=0.01)
    sent = {
        (traffic["op"], traffic["group"]): traffic for traffic in simulated["traffic"] if traffic["payload"] > 10**5
    }
    ours = {(traffic.op, traffic.group): traffic for traffic in found.work.traffic if traffic.payload > 10**5}
    assert ours.keys() == sent.keys()
    for key, traffic in ours.items():
        assert traffic.sent == pytest.approx(sent[key]["sent"], rel=exact), key
        assert (traffic.calls, traffic.ranks, traffic.span) == tuple(sent[key][n] for n in ("calls", "ranks", "span"))


def test_packs_of_a_step_are_computed_one_by_one_and_summed_once_over_copies(
    scripts: dict[str, ModuleType], entries: Any
) -> None:
    figures = scripts["scale_figures"]
    layout = figures.Layout(shard=8, replicate=4)
    one, four = (figures.cost(entries["edge"], layout, H100, packs=packs).work for packs in (1, 4))
    assert four.hardware_flops == 4 * one.hardware_flops
    assert four.moved_bytes < 4 * one.moved_bytes
    times = {(a.op, a.group): b.payload / a.payload for a, b in zip(one.traffic, four.traffic, strict=True)}
    assert times["all_gather", "dp_shard"] == times["reduce_scatter", "dp_shard"] == 4
    assert times["all_reduce", "dp_replicate"] == 1


def test_a_layout_says_nothing_of_another_context(scripts: dict[str, ModuleType], entries: Any) -> None:
    figures = scripts["scale_figures"]
    with pytest.raises(ValueError, match="a step with layout 8 says nothing of 4 × context 2"):
        figures.cost(entries["nano"], figures.Layout(4, context=2), H100)


def test_the_best_time_between_saves_is_the_best(scripts: dict[str, ModuleType]) -> None:
    figures = scripts["scale_figures"]
    lost = figures.failures(176_973_671_424, figures.Layout(64))
    times = [lost.write * 1.01**power for power in range(700)]
    assert min(times, key=lost.lost) == pytest.approx(lost.optimum, rel=0.01)
    many = figures.failures(176_973_671_424, figures.Layout(64, 64))
    assert many.optimum == many.write  # there is one save at a time
