"""Which curves are smoothed, and which charts are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from run_folders import write_lines, write_run

from worldsmith.monitor.page.charts import charts, drop_single_values
from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.run_page import page_of
from worldsmith.monitor.page.samples import PageBudget
from worldsmith.monitor.page.series import Series


def series_of(value: Callable[[int], float], steps: int = 60) -> Series:
    series = Series()
    for step in range(1, steps + 1):
        series.add(step, value(step))
    return series


def test_noisy_curves_are_smoothed_and_steady_ones_are_not() -> None:
    found = charts([("", {
        "loss": series_of(lambda step: 40 / step),
        "data_wait_share": series_of(lambda step: step * 0.618 % 1),
        "my_metric": series_of(lambda step: step * 0.618 % 1),
        "my_counter": series_of(lambda step: step // 10),
        "lr": series_of(lambda step: min(step, 10) * 1e-4),
        "few": series_of(lambda step: step * 0.618 % 1, steps=10),
    })])  # fmt: skip
    smoothed = {chart["id"]: chart["lines"][0]["smooth"] for chart in found}
    assert smoothed == {
        "loss": True, "shares": True, "my_metric": True, "my_counter": False, "learning_rate": False, "few": False,
    }  # fmt: skip


def test_charts_with_one_value_are_left_out_and_named() -> None:
    series = {"loss": series_of(float), "norms/weight": series_of(lambda step: 141.82, steps=1)}
    drawn, note = drop_single_values(charts([("", series)]))
    assert [chart["id"] for chart in drawn] == ["loss"]
    assert note == "Charts with a single value so far are not shown: Norms of the network (Weight 141.8)."
    only = charts([("", {"loss": series_of(float, steps=1)})])
    assert drop_single_values(only) == (only, "")  # the first step of a run


def test_the_page_names_the_charts_that_it_leaves_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_lines(folder / "metrics.jsonl", [*lines, {"step": 40, "norms": {"weight": 2.0}}])
    page = page_of(read_run(folder), PageBudget(folder))
    html = next(str(section.html) for section in page.sections if section.name == "curves")
    assert "norms" not in [chart["id"] for chart in page.charts]
    text = " ".join(re.sub(r"<[^>]*>", " ", html).split())
    assert "not shown: Norms of the network (Weight 2)." in text
