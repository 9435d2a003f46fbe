"""`tune.html`: the page of a study, with charts of its trials, the importance of settings, and all trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsmith.config.write.values import WORD, write
from worldsmith.monitor.page.charts import short
from worldsmith.monitor.page.formats import figure
from worldsmith.monitor.page.render import Page, section, write_html
from worldsmith.tools.tune.dimension import Dimension
from worldsmith.tools.tune.record import LEAST
from worldsmith.tools.tune.space import Space

TICKS = 4
"""On an axis of numbers, about."""
FEWEST = 2
"""Complete trials that a chart needs."""
Lines = Sequence[Mapping[str, Any]]
"""Trials as trials.jsonl has them."""


def study_charts(lines: Lines, space: Space, metric: str, direction: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The charts that have values, and one sentence for each reason to omit others."""
    complete, paths = len(valued(lines)), list(dict.fromkeys(dimension.path for dimension in space.dimensions))
    titles = {path: f"{metric} over {path}" for path in paths}
    if complete < FEWEST:
        there = f"there {'is' if complete == 1 else 'are'} {complete}"
        named = ", ".join((history_title(metric), *titles.values(), "all settings"))
        return [], [f"Not drawn, because each needs at least {FEWEST} complete trials and {there}: {named}."]
    drawn: list[dict[str, Any]] = []
    same: list[str] = []
    few: list[str] = []
    for path in paths:
        places = slice_places(lines, space, path)
        if len({place for place, _ in places}) > 1:
            drawn.append(slice_chart(lines, space, path, titles[path], places))
        else:
            (same if len(places) == complete else few).append(titles[path])
    reasons = {"all complete trials have the same value of the setting": same, "too few trials have a value": few}
    notes = [f"Not drawn, because {reason}: {', '.join(named)}." for reason, named in reasons.items() if named]
    return [*history(lines, metric, direction), *drawn, *across(lines, space, metric, direction)], notes


def history_title(metric: str) -> str:
    return f"{metric} by trial"


def history(lines: Lines, metric: str, direction: str) -> list[dict[str, Any]]:
    """Values by trial, and the best one so far."""
    complete = valued(lines)
    better = min if direction == "min" else max
    best: list[float] = []
    for _, value in complete:
        best.append(better([value, *best[-1:]]))
    pruned = [(line["trial"], line["value"]) for line in lines if line["state"] == "pruned"]
    drawn = [
        curve("best so far", [number for number, _ in complete], best),
        curve("complete", *columns(complete), points=True),
        *([curve("pruned, its last value", *columns(pruned), points=True)] if pruned else []),
    ]
    return [chart("history", history_title(metric), drawn, over="trial")]


def slice_places(lines: Lines, space: Space, path: str) -> list[tuple[float, float]]:
    """The position on the axis of a setting and the value of each complete trial that has one there."""
    dimension = dimension_of(space, path)
    labels = labels_of(dimension, lines, space)
    places = [
        (place_of(line, dimension, space, labels), line["value"]) for line in lines if line["state"] == "complete"
    ]
    return [(place, value) for place, value in places if place is not None]


def slice_chart(
    lines: Lines, space: Space, path: str, title: str, places: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """The values over one setting."""
    dimension = dimension_of(space, path)
    about: dict[str, Any] = {"over": path, "ticks": labels_of(dimension, lines, space), "log_over": is_log(dimension)}
    about["stops"] = [[value, figure(value)] for value in stops(dimension)]
    return chart(f"slice {path}", title, [curve(path, *columns(places), points=True)], **about)


def dimension_of(space: Space, path: str) -> Dimension:
    return next(dimension for dimension in space.dimensions if dimension.path == path)


def across(lines: Lines, space: Space, metric: str, direction: str) -> list[dict[str, Any]]:
    """Parallel coordinates of the complete trials: an axis for each setting, the last for the value."""
    complete = [line for line in lines if line["state"] == "complete"]
    axes, heights = [], []
    for path in dict.fromkeys(dimension.path for dimension in space.dimensions):
        dimension = dimension_of(space, path)
        labels = labels_of(dimension, lines, space)
        places = [place_of(line, dimension, space, labels) for line in complete]
        if any(place is not None for place in places):
            axes.append(axis(path.rpartition(".")[2], places, labels, stops(dimension), log=is_log(dimension)))
            heights.append(places)
    axes.append(axis(metric, [line["value"] for line in complete], log=False))
    heights.append([line["value"] for line in complete])
    order = sorted(range(len(complete)), key=lambda n: complete[n]["value"], reverse=direction == "max")
    drawn = []
    for rank, index in reversed(list(enumerate(order))):
        line, is_first = complete[index], complete[index]["trial"] == 0
        ys = [scaled(places[index], found) for places, found in zip(heights, axes, strict=True)]
        share = 1 - rank / max(1, len(complete) - 1)
        drawn.append({
            "label": f"trial {line['trial']}{' (as it is)' if is_first else ''}: {figure(line['value'])}",
            "told": " ".join(line["words"]),
            "x": [n for n, y in enumerate(ys) if y is not None],
            "y": [short(y) for y in ys if y is not None],
            "alpha": 1.0 if rank == 0 or is_first else short(0.12 + 0.6 * share),
            "width": 3 if rank == 0 else 2 if is_first else 1.4,
            "colour": "c1" if rank == 0 else "c7" if is_first else "c0",
            "run": 0,
            "smooth": False,
        })  # fmt: skip
    title = f"All settings: the best in orange, as it is in grey, the better the darker ({metric})"
    named = [{"name": found["name"], "ticks": found["ticks"]} for found in axes]
    return [{"id": "across", "title": title, "unit": "", "log": False, "more": 0, "axes": named, "lines": drawn}]


def axis(
    name: str,
    places: Sequence[float | None],
    labels: Sequence[str] | None = None,
    stops: Sequence[float] = (),
    *,
    log: bool,
) -> dict[str, Any]:
    """Where values stand on an axis from 0 to 1, and what is written beside it."""
    found = [place for place in places if place is not None]
    low, high = (0.0, max(1.0, len(labels) - 1.0)) if labels else (min(found), max(found))
    about: dict[str, Any] = {"name": name, "low": low, "high": high, "log": log and low > 0}
    inside = [stop for stop in stops if low <= stop <= high]
    values = list(range(len(labels))) if labels else inside or spread(low, high, log=about["log"])
    texts = labels or [figure(value) for value in values]
    about["ticks"] = [[scaled(value, about), text] for value, text in zip(values, texts, strict=True)]
    return about


def stops(dimension: Dimension) -> list[float]:
    """Values that are worth a tick: powers of two, or 1 and 3 of each order of magnitude."""
    mark = dimension.mark
    if not (mark.log and mark.low and mark.high):
        return mark.candidates() if mark.power_of_two else []
    exponents = range(math.floor(math.log10(mark.low)), math.ceil(math.log10(mark.high)) + 1)
    found = [float(f"{digit}e{exponent}") for exponent in exponents for digit in (1, 3)[: 1 + (len(exponents) < 5)]]
    return [value for value in found if mark.low <= value <= mark.high]


def spread(low: float, high: float, *, log: bool) -> list[float]:
    if low == high:
        return [low]
    if log:
        return [low * (high / low) ** (n / (TICKS - 1)) for n in range(TICKS)]
    return [low + (high - low) * n / (TICKS - 1) for n in range(TICKS)]


def scaled(value: float | None, axis: Mapping[str, Any]) -> float | None:
    if value is None:
        return None
    low, high = axis["low"], axis["high"]
    if axis["log"]:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return 0.5 if low == high else (value - low) / (high - low)


def labels_of(dimension: Dimension, lines: Lines, space: Space) -> list[str] | None:
    """The values of a setting that is no number, as they were met; None for numbers."""
    values = [space.value(dimension.path, line["settings"]) for line in lines]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return None
    return list(dict.fromkeys(shown(value) for value in [*dimension.mark.choices, *values]))


def is_log(dimension: Dimension) -> bool:
    return dimension.mark.log or dimension.mark.power_of_two


def place_of(line: Mapping[str, Any], dimension: Dimension, space: Space, labels: Sequence[str] | None) -> float | None:
    """Where a trial stands on the axis of a setting; None where it has none."""
    value: Any = space.value(dimension.path, line["settings"])
    if labels is not None:
        return labels.index(shown(value))
    return None if dimension.mark.log and value <= 0 else value


def chart(name: str, title: str, lines: list[dict[str, Any]], **about: Any) -> dict[str, Any]:
    return {"id": name, "title": title, "unit": "", "log": False, "more": 0, "lines": lines, **about}


def curve(label: str, x: Sequence[float], y: Sequence[float], *, points: bool = False) -> dict[str, Any]:
    """A line, or points, as `look/page.js` draws them."""
    pairs = list(zip(x, y, strict=True))
    ends = {"last": pairs[-1], "least": min(pairs, key=lambda p: p[1]), "greatest": max(pairs, key=lambda p: p[1])}
    return {
        "label": label,
        "x": [short(value) for value in x],
        "y": [short(value) for value in y],
        "smooth": False,
        "points": points,
        "values": len(pairs),
        "run": 0,
        **{name: [short(place), short(value)] for name, (place, value) in ends.items()},
    }


def valued(lines: Lines) -> list[tuple[int, float]]:
    return [(line["trial"], line["value"]) for line in lines if line["state"] == "complete"]


def columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def shown(value: Any) -> str:
    return value if isinstance(value, str) else write(value, WORD)


def write_page(
    out: Path, *, name: str, space: Space, lines: Lines, facts: Mapping[str, Any], rules: Mapping[str, Any],
    importances: Mapping[str, float], command: str, at_work: bool,
) -> Path:  # fmt: skip
    """`lines` are those of trials.jsonl, `facts` those of best.json, `rules` what the study was asked to do."""
    metric, direction = rules["metric"], rules["direction"]
    paths = list(dict.fromkeys(dimension.path for dimension in space.dimensions))
    rows = [
        {
            **line,
            "shown": {path: shown(space.value(path, line["settings"])) for path in paths},
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
    few = f"That takes {LEAST} complete trials, in which the value differs."
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
        section("importances", "What matters", importances=importances, complete=count(lines, "complete"), why=few),
        section("trials", "Trials", lines=rows, paths=paths, best=facts.get("trial"), refused=refused),
        section("space", "Search", space=[str(dimension) for dimension in space.dimensions], rules=rules),
    ]
    title = f"{name}: {len(lines)} trials"
    return write_html(Page(title, sections, charts), out)


def head(facts: Mapping[str, Any], lines: Lines) -> list[dict[str, str]]:
    """The figures at the head of the page."""

    def fact(name: str, value: str, note: str = "") -> dict[str, str]:
        return {"name": name, "value": value, "note": note}

    found = []
    if facts.get("trial") is not None:
        found += [fact("Best", figure(facts["value"]), f"trial {facts['trial']}")]
        found += [fact("As it is", figure(facts["as_it_is"]), "trial 0")]
    if final := facts.get("final"):
        found += [fact("Best, on final data", figure(final["best"]), "which no trial has seen")]
        found += [fact("As it is, on final data", figure(final["as_it_is"]))]
    found += [fact(state.capitalize(), str(count(lines, state))) for state in ("complete", "pruned", "failed")]
    return [*found, fact("Draws that could not run", str(sum(len(line["refused"]) for line in lines)))]


def warning(facts: Mapping[str, Any]) -> str:
    if facts.get("final") or not facts.get("trial"):
        return ""
    return (
        "The best value is the best of many on the same data, which flatters it. --final-data measures it on data that "
        "no trial has seen."
    )


def count(lines: Lines, state: str) -> int:
    return sum(line["state"] == state for line in lines)


def report(out: Path, line: Mapping[str, Any]) -> str:
    """The page of a trial's run, beside that of the study."""
    return f"{line['run']}/report.html" if (out.parent / line["run"] / "report.html").exists() else ""
