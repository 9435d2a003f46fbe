"""Which figures are drawn in which chart, as plain data for `look/page.js`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldsmith.monitor.page.series import Series

MOST_LINES = 12
"""Of one run in one chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that is known by name. Figures of no such chart get one of their own."""

    title: str
    figures: str
    """Regular expression of their names."""
    unit: str = ""
    factor: float = 1.0
    smooth: bool = False
    log: bool = False
    labels: Mapping[str, str] | None = None


CHARTS = {
    "loss": Chart("Training loss", r"loss", smooth=True),
    "validation": Chart(
        "Validation loss", r"val(_ema)?/loss", labels={"val/loss": "live weights", "val_ema/loss": "averaged weights"}
    ),
    "learning_rate": Chart("Learning rate", r"lr|lr_groups/.*"),
    "gradient": Chart("Gradient norm", r"grad_norm", smooth=True, log=True),
    "throughput": Chart("Tokens per second", r"tokens_per_second", smooth=True),
    "seconds": Chart(
        "Seconds per step",
        r"(step|data)_seconds",
        unit="s",
        smooth=True,
        labels={"step_seconds": "whole step", "data_seconds": "waiting for data"},
    ),
    "shares": Chart("Shares, 0 to 1", r"\w+_share"),
    "loss_by_noise": Chart("Loss by noise level", r"loss_by_noise/.*"),
    "val_by_noise": Chart("Validation loss by noise level", r"val/loss_by_noise/.*"),
    "val_ema_by_noise": Chart("Validation loss by noise level, averaged weights", r"val_ema/loss_by_noise/.*"),
    "norms": Chart("Norms of the whole network", r"norms/.*", log=True),
    "memory": Chart("Peak memory", r"peak_memory_bytes", unit="GiB", factor=2**-30),
    "device_load": Chart("Load of the busiest process", r"devices/\w+_percent", unit="%"),
    "device_memory": Chart("Memory of the largest process", r"devices/\w+_bytes", unit="GiB", factor=2**-30),
}


def charts(runs: Sequence[tuple[str, Mapping[str, Series]]]) -> list[dict[str, Any]]:
    """The charts of the series of (named) runs, in the order in which they are shown; empty ones are left out."""
    found: dict[str, dict[str, Any]] = {}
    for index, (run, series) in enumerate(runs):
        for figure, values in series.items():
            if figure == "lr" and any(other.startswith("lr_groups/") for other in series):  # the first of them
                continue
            name = chart_of(figure)
            about = CHARTS.get(name, Chart(in_words(name), ""))
            chart = found.setdefault(
                name, {"id": name, "title": about.title, "unit": about.unit, "log": about.log, "lines": [], "more": 0}
            )
            if sum(line["run"] == index for line in chart["lines"]) >= MOST_LINES:
                chart["more"] += 1
                continue
            label = (about.labels or {}).get(figure, label_of(figure))
            chart["lines"].append({**line(values, about), "run": index, "name": run, "label": label})
    for chart in found.values():
        chart["lines"] = by_number(chart["lines"])
    order = [*CHARTS, *sorted(found.keys() - CHARTS.keys())]
    return [found[name] for name in order if name in found]


def label_of(figure: str) -> str:
    """What a line is called. A group of learning rates that is named by its factor has a times sign."""
    name = figure.rpartition("/")[2]
    factor = re.fullmatch(r"x([\d.e+-]+)", name) if figure.startswith("lr_groups/") else None
    return f"rate × {factor[1]}" if factor else in_words(name)


def by_number(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines that are named by numbers in the order of these, others as they come."""
    try:
        return sorted(lines, key=lambda line: (line["run"], float(line["label"])))
    except ValueError:
        return lines


def chart_of(figure: str) -> str:
    """The chart in which a figure is drawn."""
    for name, chart in CHARTS.items():
        if re.fullmatch(chart.figures, figure):
            return name
    return figure.rpartition("/")[0] or figure


def line(series: Series, about: Chart) -> dict[str, Any]:
    """The points of one curve; with the least and greatest values around each where it stands for several."""
    buckets, factor = series.buckets, about.factor
    data: dict[str, Any] = {
        "x": [short(bucket.steps / bucket.count) for bucket in buckets],
        "y": [short(factor * bucket.total / bucket.count) for bucket in buckets],
        "smooth": about.smooth and len(buckets) > 20,
        "values": series.values,
        "last": [series.last[0], short(factor * series.last[1])],
        "least": [series.least[0], short(factor * series.least[1])],
        "greatest": [series.greatest[0], short(factor * series.greatest[1])],
    }
    if series.thinned:
        data["low"] = [short(factor * bucket.low) for bucket in buckets]
        data["high"] = [short(factor * bucket.high) for bucket in buckets]
    return data


def short(value: float) -> float:
    """As many digits as can be seen."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def in_words(name: str) -> str:
    text = name.replace("_", " ").replace("/", " · ")
    return text[:1].upper() + text[1:]
