"""Curves keep their least and greatest values however long they are, in a bounded number of points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worldsmith.monitor.page.charts import charts
from worldsmith.monitor.page.series import MOST_BUCKETS, MetricsReader, Series


@pytest.mark.parametrize("distance", [1, 10, 7])
def test_a_long_series_keeps_its_extremes_and_mean(distance: int) -> None:
    series, values = Series(), [(i * 7919) % 1009 / 3 for i in range(20_000)]
    values[13_337], values[4_242] = 1e6, -1e6
    for index, value in enumerate(values):
        series.add((index + 1) * distance, value)
    assert MOST_BUCKETS / 2 <= len(series.buckets) <= MOST_BUCKETS
    assert series.thinned
    assert min(bucket.low for bucket in series.buckets) == -1e6
    assert max(bucket.high for bucket in series.buckets) == 1e6
    assert (series.least, series.greatest) == ((4_243 * distance, -1e6), (13_338 * distance, 1e6))
    assert sum(bucket.total for bucket in series.buckets) == pytest.approx(sum(values))
    assert sum(bucket.count for bucket in series.buckets) == len(values)
    for bucket in series.buckets:  # each stands at the mean of its own steps
        assert bucket.index == int(bucket.steps / bucket.count) // series.width


def test_a_short_series_is_what_was_written() -> None:
    series = Series()
    for step in (1, 10, 20):
        series.add(step, step / 2)
    ((chart),) = charts([("", {"loss": series})])
    (line,) = chart["lines"]
    assert (line["x"], line["y"]) == ([1, 10, 20], [0.5, 5, 10])
    assert "low" not in line
    assert not series.thinned


def test_what_is_added_to_the_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    reader.read()
    assert reader.step is None
    path.write_text('{"step": 1, "loss": 4.0}\nno JSON\n{"step": 2, "loss": null}\n{"step": 3, "lo')
    reader.read()
    assert (reader.step, reader.broken, reader.missing["loss"]) == (2, 1, 1)
    with path.open("a") as file:
        file.write('ss": 2.0, "lr_groups": {"a": 1e-4}, "loaded": {"samples": 6}, "skipped": false}\n')
    reader.read()
    assert [bucket.total for bucket in reader.series["loss"].buckets] == [4.0, 2.0]
    assert reader.latest == {"loss": 2.0, "lr_groups/a": 1e-4, "loaded/samples": 6}
    aside = tmp_path / "anew"
    aside.write_text('{"step": 1, "loss": 5.0}\n')
    aside.replace(path)  # as a run does that goes on from an earlier step
    reader.read()
    assert [bucket.total for bucket in reader.series["loss"].buckets] == [5.0]


def test_figures_that_nobody_knows_get_a_chart_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    figures = {
        "loss": 1.0,
        "lr": 1e-3,
        "lr_groups": {"tower": 1e-4, "x0.1": 1e-5},
        "loss_by_noise": {"0.4": 1.0, "0.1": 2.0},
    }
    path.write_text(
        json.dumps({"step": 1, **figures, "padding_share": 0.4, "odd": 3, "samples": 4, "loaded": {"samples": 4}})
        + "\n"
    )
    reader = MetricsReader(path)
    reader.read()
    found = {chart["id"]: [line["label"] for line in chart["lines"]] for chart in charts([("", reader.series)])}
    assert found == {
        "loss": ["Loss"],
        "learning_rate": ["Tower", "rate × 0.1"],
        "shares": ["tokens that are padding"],
        "loss_by_noise": ["0.1", "0.4"],
        "odd": ["Odd"],
    }
