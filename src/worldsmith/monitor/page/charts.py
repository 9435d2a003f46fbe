"""Charts of the report and their metrics, as plain data for `templates/page.js`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldsmith.monitor.page.formats import format_float
from worldsmith.monitor.page.series import Series

MOST_LINES = 12
"""Max number of lines of one run in one chart."""
FEWEST_SMOOTHED = 20
"""Number of points above which a curve may be smoothed."""
NOISY = 5
"""Min ratio of total variation (sum of absolute changes) to value range for which a curve counts as noisy."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Definition of a chart of the HTML report: its metrics, title and axis.

    A metric that matches no definition is shown in a chart named after the metric's group (`find_chart`).
    """

    title: str
    figures: str
    """Regular expression that matches the names of the metrics in the chart."""
    unit: str = ""
    """Unit of the shown values; "": no unit."""
    factor: float = 1.0
    """Factor by which logged values are multiplied, such as 2**-30 for bytes shown in GiB."""
    smooth: bool = False
    """Whether long curves are smoothed; False: only noisy ones."""
    log: bool = False
    """Whether the vertical axis is logarithmic."""
    labels: Mapping[str, str] | None = None
    """Legend labels by metric name; None: labels are derived from the names."""


CHARTS = {
    "loss": Chart("Training loss", r"loss", smooth=True),
    "validation": Chart(
        "Validation loss", r"val(_ema)?/loss", labels={"val/loss": "raw weights", "val_ema/loss": "EMA weights"}
    ),
    "learning_rate": Chart("Learning rate", r"lr|lr_groups/.*", labels={"lr": "learning rate"}),
    "gradient": Chart("Gradient norm", r"grad_norm", smooth=True, log=True),
    "throughput": Chart("Tokens per second", r"tokens_per_second", smooth=True),
    "seconds": Chart(
        "Step time",
        r"(step|data)_seconds",
        unit="s",
        smooth=True,
        labels={"step_seconds": "complete step", "data_seconds": "waiting for data"},
    ),
    "shares": Chart(
        "Waiting, padding and device utilization, as fractions",
        r"\w+_share",
        labels={
            "data_wait_share": "step time that waits for data",
            "padding_share": "tokens that are padding",
            "model_flops_share": "peak FLOPs of the device that the model uses",
        },
    ),
    "loss_by_noise": Chart("Loss by noise level (0: clean, 1: noise)", r"loss_by_noise/.*", smooth=True),
    "val_by_noise": Chart("Validation loss by noise level (0: clean, 1: noise)", r"val/loss_by_noise/.*"),
    "val_ema_by_noise": Chart(
        "Validation loss by noise level (0: clean, 1: noise), EMA weights", r"val_ema/loss_by_noise/.*"
    ),
    "norms": Chart("Norms of the network", r"norms/.*", log=True),
    "memory": Chart("Peak memory", r"peak_memory_bytes", unit="GiB", factor=2**-30),
    "device_load": Chart("Peak CPU utilization of a process", r"devices/\w+_percent", unit="%"),
    "device_memory": Chart("Memory of the largest process", r"devices/\w+_bytes", unit="GiB", factor=2**-30),
}


def charts(runs: Sequence[tuple[str, Mapping[str, Series]]]) -> list[dict[str, Any]]:
    """Builds the charts of several runs, in the order in which they are shown. Charts without values are omitted.

    Args:
        runs: (name, series by metric) of each run; the name is empty for a single run.

    Returns:
        One dict per chart: `id`, `title`, `unit`, `log` (logarithmic axis), `lines` (curves) and `more` (number of
        omitted curves). A curve is a dict with the data from `build_line`, `run` (index), `name` (of the run) and
        `label`.
    """
    found: dict[str, dict[str, Any]] = {}
    for index, (run, series) in enumerate(runs):
        for metric, values in series.items():
            if metric == "lr" and any(other.startswith("lr_groups/") for other in series):  # the first of them
                continue
            name = find_chart(metric)
            definition = CHARTS.get(name, Chart(format_metric_name(name), ""))
            new = chart_data(name, definition.title, [], unit=definition.unit, log=definition.log)
            chart = found.setdefault(name, new)
            if sum(line["run"] == index for line in chart["lines"]) >= MOST_LINES:
                chart["more"] += 1
                continue
            label = (definition.labels or {}).get(metric, format_label(metric))
            chart["lines"].append({**build_line(values, definition), "run": index, "name": run, "label": label})
    for chart in found.values():
        chart["lines"] = sort_numbered_lines(chart["lines"])
    order = [*CHARTS, *sorted(found.keys() - CHARTS.keys())]
    return [found[name] for name in order if name in found]


def chart_data(
    name: str, title: str, lines: list[dict[str, Any]], *, unit: str = "", log: bool = False, **about: Any
) -> dict[str, Any]:
    """Returns a chart as a dict for the HTML templates; `name` is its id, `lines` are curves, `about` further keys."""
    return {"id": name, "title": title, "unit": unit, "log": log, "more": 0, "lines": lines, **about}


def format_label(metric: str) -> str:
    """Returns the legend label of a metric, such as "rate × 0.1" for the learning rate group `lr_groups/x0.1`."""
    name = metric.rpartition("/")[2]
    factor = re.fullmatch(r"x([\d.e+-]+)", name) if metric.startswith("lr_groups/") else None
    return f"rate × {factor[1]}" if factor else format_metric_name(name)


def sort_numbered_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the curves of a chart sorted by `run` and `label` if all labels are numbers, else in the given order."""
    try:
        return sorted(lines, key=lambda line: (line["run"], float(line["label"])))
    except ValueError:
        return lines


def find_chart(metric: str) -> str:
    """Returns the key in `CHARTS` of the chart that shows a metric; else the metric's name up to the last "/"."""
    for name, chart in CHARTS.items():
        if re.fullmatch(chart.figures, metric):
            return name
    return metric.rpartition("/")[0] or metric


def build_line(series: Series, definition: Chart) -> dict[str, Any]:
    """Builds the data of one curve of a chart as a dict.

    Keys: `x` (steps) and `y` of the points, `smooth` (whether to smooth the curve), `values` (number of logged values),
    `last`, `least` and `greatest` (each [step, value]). If it is downsampled, also `low` and `high` (min and max per
    point).
    """
    buckets, factor = series.buckets, definition.factor
    values = [factor * bucket.total / bucket.count for bucket in buckets]
    data: dict[str, Any] = {
        "x": [short(bucket.steps / bucket.count) for bucket in buckets],
        "y": [short(value) for value in values],
        "smooth": len(buckets) > FEWEST_SMOOTHED and (definition.smooth or is_noisy(values)),
        "values": series.values,
        "last": [series.last[0], short(factor * series.last[1])],
        "least": [series.least[0], short(factor * series.least[1])],
        "greatest": [series.greatest[0], short(factor * series.greatest[1])],
    }
    if series.thinned:
        data["low"] = [short(factor * bucket.low) for bucket in buckets]
        data["high"] = [short(factor * bucket.high) for bucket in buckets]
    return data


def is_noisy(values: Sequence[float]) -> bool:
    """Returns whether a curve is noisy: the sum of its absolute changes exceeds `NOISY` times its range."""
    extent = max(values) - min(values)
    return extent > 0 and sum(abs(b - a) for a, b in itertools.pairwise(values)) > NOISY * extent


def drop_single_values(charts: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Removes the charts whose curves have one value each. If all charts are such, as at first, none is removed.

    Args:
        charts: Result of `charts`.

    Returns:
        The remaining charts, and a sentence with the removed charts and their values ("" if none is removed).
    """
    kept = [chart for chart in charts if any(len(line["x"]) > 1 for line in chart["lines"])]
    if not kept or len(kept) == len(charts):
        return charts, ""
    removed = []
    for chart in charts:
        if chart not in kept:
            unit = f" {chart['unit']}" if chart["unit"] else ""
            values = [f"{format_curve_name(line)} {format_float(line['last'][1])}{unit}" for line in chart["lines"]]
            removed.append(f"{chart['title']} ({', '.join(values)})")
    return kept, f"Charts with a single value so far are not shown: {'; '.join(removed)}."


def format_curve_name(line: Mapping[str, Any]) -> str:
    """Returns the `label` of a curve, preceded by the `name` of its run if several runs are compared."""
    return " · ".join(filter(None, (line["name"], line["label"])))


def short(value: float) -> float:
    """Rounds a value to 6 significant digits."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def format_metric_name(name: str) -> str:
    text = name.replace("_", " ").replace("/", " · ")
    return text[:1].upper() + text[1:]
