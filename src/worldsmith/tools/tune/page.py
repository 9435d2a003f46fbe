"""`tune.html`: the HTML report of a study, with charts of its trials, the importance of settings, and all trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsmith.config.write.values import WORD, write
from worldsmith.monitor.page.charts import chart_data, short
from worldsmith.monitor.page.formats import format_float
from worldsmith.monitor.page.render import Page, fact, section, write_html
from worldsmith.tools.tune.dimension import Dimension
from worldsmith.tools.tune.record import LEAST
from worldsmith.tools.tune.space import Space

TICKS = 4
"""Approximate number of ticks on a numeric axis."""
FEWEST = 2
"""Min completed trials for a chart."""
Lines = Sequence[Mapping[str, Any]]
"""Ended trials of a study, each as a dict with the content of its line in trials.jsonl."""


@dataclass(frozen=True)
class SettingAxis:
    """Axis of a chart for a searched setting, with the positions of the completed trials."""

    dimension: Dimension
    labels: list[str] | None
    """Choices of a non-numeric setting; a trial's coordinate is the index of its choice. None for numbers."""
    positions: list[float | None]
    """Position of each completed trial; None if it has no value."""

    @property
    def is_log(self) -> bool:
        """Whether the axis is logarithmic: the search range is logarithmic or consists of powers of two."""
        return self.dimension.mark.log or self.dimension.mark.power_of_two


def setting_axis(path: str, lines: Lines, space: Space) -> SettingAxis:
    """Returns the axis for the searched setting `path`; values that are not all numbers become labels.

    `lines` are the trials as in trials.jsonl, `space` is the search space.
    """
    dimension = next(dimension for dimension in space.dimensions if dimension.path == path)
    values: list[Any] = [space.value(path, line["settings"]) for line in lines]
    complete = [value for value, line in zip(values, lines, strict=True) if line["state"] == "complete"]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        numbers = [None if dimension.mark.log and value <= 0 else value for value in complete]
        return SettingAxis(dimension, None, numbers)
    labels = list(dict.fromkeys(shown(value) for value in [*dimension.mark.choices, *values]))
    return SettingAxis(dimension, labels, [labels.index(shown(value)) for value in complete])


def study_charts(lines: Lines, space: Space, metric: str, direction: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns (charts that have enough values, sentences that state why the remaining charts are not shown).

    Each chart is a dict for the HTML templates, as built by `chart` or `parallel_coordinates`.

    Args:
        lines: Trials as in trials.jsonl.
        space: The search space.
        metric: Name of the objective.
        direction: "min" or "max": which values are better.
    """
    complete = [line for line in lines if line["state"] == "complete"]
    titles = {path: f"{metric} over {path}" for path in space.paths}
    history_title = f"{metric} by trial"
    if len(complete) < FEWEST:
        there = f"there {'is' if len(complete) == 1 else 'are'} {len(complete)}"
        named = ", ".join((history_title, *titles.values(), "all settings"))
        return [], [
            f"No chart is shown, because each chart needs at least {FEWEST} completed trials and {there}: {named}."
        ]
    settings = {path: setting_axis(path, lines, space) for path in titles}
    drawn: list[dict[str, Any]] = [chart_data("history", history_title, history(lines, direction), over="trial")]
    same: list[str] = []
    few: list[str] = []
    for path, setting in settings.items():
        pairs = zip(setting.positions, complete, strict=True)
        points = [(position, line["value"]) for position, line in pairs if position is not None]
        if len({position for position, _ in points}) > 1:
            about: dict[str, Any] = {"over": path, "ticks": setting.labels, "log_over": setting.is_log}
            about["stops"] = [[value, format_float(value)] for value in stops(setting.dimension)]
            drawn.append(chart_data(f"slice {path}", titles[path], [curve(path, points, points=True)], **about))
        else:
            (same if len(points) == len(complete) else few).append(titles[path])
    drawn.append(parallel_coordinates(complete, list(settings.values()), metric, direction))
    reasons = {"all completed trials have the same value of the setting": same, "too few trials have a value": few}
    return drawn, [
        f"No chart is shown, because {reason}: {', '.join(named)}." for reason, named in reasons.items() if named
    ]


def history(lines: Lines, direction: str) -> list[dict[str, Any]]:
    """Returns the curves of the history chart: best value so far, values of completed and of pruned trials.

    `lines` are the trials as in trials.jsonl; `direction` ("min" or "max") states which values are better.
    """
    complete, pruned = (
        [(line["trial"], line["value"]) for line in lines if line["state"] == state] for state in ("complete", "pruned")
    )
    best = itertools.accumulate((value for _, value in complete), min if direction == "min" else max)
    return [
        curve("best so far", list(zip((number for number, _ in complete), best, strict=True))),
        curve("complete", complete, points=True),
        *([curve("pruned, its last value", pruned, points=True)] if pruned else []),
    ]


def parallel_coordinates(
    complete: Lines, settings: Sequence[SettingAxis], metric: str, direction: str
) -> dict[str, Any]:
    """Returns the parallel-coordinates chart of the completed trials: an axis per setting, the objective last.

    The chart is a dict for the HTML templates, with one line per trial.

    Args:
        complete: The completed trials, as in trials.jsonl.
        settings: Axes of the searched settings.
        metric: Name of the objective.
        direction: "min" or "max": which values are better.
    """
    values = [line["value"] for line in complete]
    axes, heights = [], []
    for setting in settings:
        if any(position is not None for position in setting.positions):
            name = setting.dimension.path.rpartition(".")[2]
            ticks = stops(setting.dimension)
            axes.append(axis(name, setting.positions, setting.labels, ticks, log=setting.is_log))
            heights.append(setting.positions)
    axes.append(axis(metric, values, log=False))
    heights.append(values)
    order = sorted(range(len(complete)), key=values.__getitem__, reverse=direction == "max")
    drawn = []
    for rank, index in reversed(list(enumerate(order))):
        line, is_first = complete[index], complete[index]["trial"] == 0
        ys = [scaled(places[index], found) for places, found in zip(heights, axes, strict=True)]
        share = 1 - rank / max(1, len(complete) - 1)
        drawn.append({
            "label": f"trial {line['trial']}{' (baseline)' if is_first else ''}: {format_float(line['value'])}",
            "told": " ".join(line["words"]),
            "x": [n for n, y in enumerate(ys) if y is not None],
            "y": [short(y) for y in ys if y is not None],
            "alpha": 1.0 if rank == 0 or is_first else short(0.12 + 0.6 * share),
            "width": 3 if rank == 0 else 2 if is_first else 1.4,
            "colour": "c1" if rank == 0 else "c7" if is_first else "c0",
            "run": 0,
            "smooth": False,
        })  # fmt: skip
    title = f"All settings: best trial orange, baseline gray, darker lines are better ({metric})"
    named = [{"name": found["name"], "ticks": found["ticks"]} for found in axes]
    return chart_data("across", title, drawn, axes=named)


def axis(
    name: str,
    places: Sequence[float | None],
    labels: Sequence[str] | None = None,
    stops: Sequence[float] = (),
    *,
    log: bool,
) -> dict[str, Any]:
    """Returns an axis as a dict: `name`, limits `low` and `high`, `log`, and `ticks` as [position from 0 to 1, text].

    Args:
        name: Name of the axis.
        places: Values on the axis; None for a trial without a value.
        labels: Labels of the values 0, 1, …; None: the values are numbers.
        stops: Values of the ticks; those outside of the range are not used. Without any, ticks are evenly spaced.
        log: Whether the axis is logarithmic; ignored if a value is not positive.
    """
    found = [place for place in places if place is not None]
    low, high = (0.0, max(1.0, len(labels) - 1.0)) if labels else (min(found), max(found))
    about: dict[str, Any] = {"name": name, "low": low, "high": high, "log": log and low > 0}
    inside = [stop for stop in stops if low <= stop <= high]
    values = list(range(len(labels))) if labels else inside or compute_ticks(low, high, log=about["log"])
    texts = labels or [format_float(value) for value in values]
    about["ticks"] = [[scaled(value, about), text] for value, text in zip(values, texts, strict=True)]
    return about


def stops(dimension: Dimension) -> list[float]:
    """Returns values for the ticks of a dimension's axis: powers of two, or 1 and 3 of each order of magnitude.

    The result is empty for an axis that is neither logarithmic nor of powers of two.
    """
    mark = dimension.mark
    if not (mark.log and mark.low and mark.high):
        return mark.candidates() if mark.power_of_two else []
    exponents = range(math.floor(math.log10(mark.low)), math.ceil(math.log10(mark.high)) + 1)
    found = [float(f"{digit}e{exponent}") for exponent in exponents for digit in (1, 3)[: 1 + (len(exponents) < 5)]]
    return [value for value in found if mark.low <= value <= mark.high]


def compute_ticks(low: float, high: float, *, log: bool) -> list[float]:
    """Returns `TICKS` evenly spaced tick values from `low` to `high`; evenly in the logarithm if `log`."""
    if low == high:
        return [low]
    if log:
        return [low * (high / low) ** (n / (TICKS - 1)) for n in range(TICKS)]
    return [low + (high - low) * n / (TICKS - 1) for n in range(TICKS)]


def scaled(value: float | None, axis: Mapping[str, Any]) -> float | None:
    """Returns the position from 0 to 1 of a value on an axis with the keys `low`, `high` and `log`; None for None."""
    if value is None:
        return None
    low, high = axis["low"], axis["high"]
    if axis["log"]:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return 0.5 if low == high else (value - low) / (high - low)


def curve(label: str, pairs: Sequence[tuple[float, float]], *, points: bool = False) -> dict[str, Any]:
    """Returns a curve, or single points, as a dict for the chart script of the report: `label`, `x`, `y` and more.

    `pairs` are the (x, y) points, at least one; `points`: show single points instead of a connected curve.
    """
    ends = {"last": pairs[-1], "least": min(pairs, key=lambda p: p[1]), "greatest": max(pairs, key=lambda p: p[1])}
    return {
        "label": label,
        "x": [short(x) for x, _ in pairs],
        "y": [short(y) for _, y in pairs],
        "smooth": False,
        "points": points,
        "values": len(pairs),
        "run": 0,
        **{name: [short(place), short(value)] for name, (place, value) in ends.items()},
    }


def shown(value: Any) -> str:
    """Returns a setting's value as text, formatted as in an override (NAME=VALUE)."""
    return value if isinstance(value, str) else write(value, WORD)


def write_page(
    out: Path, *, name: str, space: Space, lines: Lines, facts: Mapping[str, Any], rules: Mapping[str, Any],
    importances: Mapping[str, float], command: str, at_work: bool,
) -> Path:  # fmt: skip
    """Writes the HTML report of a study; returns its path.

    Args:
        out: Path of the report.
        name: Name of the study.
        space: The search space.
        lines: Trials as in trials.jsonl.
        facts: Content of best.json; its key "trial" is missing if no trial is complete.
        rules: Settings of the study by name; `source`, `metric` and `direction` are required.
        importances: Importance (0 to 1) by dimension name; empty: unknown.
        command: Command line that trains with the best settings.
        at_work: Whether the study is running.
    """
    metric, direction = rules["metric"], rules["direction"]
    rows = [
        {
            **line,
            "shown": {path: shown(space.value(path, line["settings"])) for path in space.paths},
            "report": report(out, line),
        }
        for line in lines
    ]
    refused = [
        {"trial": line["trial"], "text": " ".join(f"{p}={shown(v)}" for p, v in draw["settings"].items()), **draw}
        for line in lines
        for draw in line["refused"]
    ]
    charts, notes = study_charts(lines, space, metric, direction)
    few = f"At least {LEAST} completed trials with different values are required."
    sections = [
        section(
            "study",
            "Overview",
            study=name,
            folder=str(out.parent),
            at_work=at_work,
            source=rules["source"],
            metric=metric,
            direction=direction,
            facts=list(head(facts, lines)),
            note=warning(facts),
            words=facts.get("words", []),
            command=command if facts.get("trial") is not None else "",
        ),
        section("study_charts", "Charts", notes=notes),
        section(
            "importances",
            "Importance of settings",
            importances=importances,
            complete=count_trials(lines, "complete"),
            why=few,
        ),
        section("trials", "Trials", lines=rows, paths=space.paths, best=facts.get("trial"), refused=refused),
        section("space", "Search", space=[str(dimension) for dimension in space.dimensions], rules=rules),
    ]
    title = f"{name}: {len(lines)} trials"
    return write_html(Page(title, sections, charts), out)


def head(facts: Mapping[str, Any], lines: Lines) -> list[dict[str, str]]:
    """Returns the entries at the top of the report, as dicts of texts with the keys `name`, `value` and `note`.

    `facts` is the content of best.json; `lines` are the trials as in trials.jsonl.
    """
    found = []
    if facts.get("trial") is not None:
        found += [fact("Best", format_float(facts["value"]), f"trial {facts['trial']}")]
        found += [fact("Baseline", format_float(facts["as_it_is"]), "trial 0")]
    if final := facts.get("final"):
        found += [fact("Best, on final data", format_float(final["best"]), "which no trial has seen")]
        found += [fact("Baseline, on final data", format_float(final["as_it_is"]))]
    found += [fact(state.capitalize(), str(count_trials(lines, state))) for state in ("complete", "pruned", "failed")]
    return [*found, fact("Rejected configurations", str(sum(len(line["refused"]) for line in lines)))]


def warning(facts: Mapping[str, Any]) -> str:
    """Returns the warning that the value of the best trial is too optimistic, because it was selected from many trials.

    Returns "" if the best trial was also evaluated on the held-out data of `--final-data`, if it is the baseline, or if
    no trial is complete. `facts` is the content of best.json.
    """
    if facts.get("final") or not facts.get("trial"):
        return ""
    return (
        "The best value was selected from many trials on the same data, so it is too optimistic. --final-data "
        "measures it on data that no trial has seen."
    )


def count_trials(lines: Lines, state: str) -> int:
    return sum(line["state"] == state for line in lines)


def report(out: Path, line: Mapping[str, Any]) -> str:
    """Returns the path, relative to the page `out`, of the HTML report of a trial's run; "" if it does not exist.

    `line` is the trial as in trials.jsonl.
    """
    return f"{line['run']}/report.html" if (out.parent / line["run"] / "report.html").exists() else ""
