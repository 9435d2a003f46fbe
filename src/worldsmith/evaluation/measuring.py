"""Results of metrics: the values of each model, their means with intervals, and the differences of models."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.evaluation.intervals import mean_interval, share_interval
from worldsmith.evaluation.metrics.base import Better
from worldsmith.monitor.terminal_text import fitting_columns, terminal_width

if TYPE_CHECKING:
    from worldsmith.evaluation.generated_video import GeneratedVideo
    from worldsmith.evaluation.metrics.base import Metric

LOSS = "loss"
"""The evaluator that is no metric of videos, and its result: the held-out loss."""
REAL = "real"
"""Column of the real videos, next to those of the models."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Values of one output of a metric for one model."""

    values: Mapping[str, float | str]
    """By sample, group of samples, or clip; of all samples together under an empty name. Text states why there is no
    number."""
    samples: int | None = None
    """Number of samples that were measured together; None: each value is of its own sample."""

    @property
    def numbers(self) -> dict[str, float]:
        return {name: value for name, value in self.values.items() if not isinstance(value, str)}

    @property
    def not_measured(self) -> dict[str, int]:
        """How often each reason occurs."""
        return dict(sorted(Counter(value for value in self.values.values() if isinstance(value, str)).items()))


def measure(videos: Iterable[GeneratedVideo], metrics: Collection[Metric]) -> dict[str, Scores]:
    """Measures the videos of one model, one after the other; returns the scores by output."""
    if not metrics:
        return {}
    for metric in metrics:
        metric.reset()
    count = 0
    for video in videos:
        for metric in metrics:
            metric.update([video])
        count += 1
    return {output: scores for metric in metrics for output, scores in scores_of(metric, count)}


def scores_of(metric: Metric, count: int) -> Iterator[tuple[str, Scores]]:
    """Scores of each output of a metric after `count` videos."""
    computed = metric.compute()
    together: dict[str, float | str] = {**metric.not_measured, **computed}
    for output in metric.outputs:
        if metric.by_sample:
            yield output, Scores({name: of[output] for name, of in metric.by_sample.items() if output in of})
        else:
            value = {"": together[output]} if output in together else {}
            yield output, Scores(value, count if metric.samples is None else metric.samples)


def summarize(units: Mapping[str, str], models: Mapping[str, Mapping[str, Scores]]) -> dict[str, Any]:
    """Mean and interval of each output for each model, and the paired differences of the first model from the others.

    Args:
        units: by output. Outputs without any value are omitted.
        models: scores by model and output.
    """
    found: dict[str, Any] = {}
    first = next(iter(models))
    for output, unit in units.items():
        scores = {name: of.get(output, Scores({})) for name, of in models.items()}
        if not any(of.values for of in scores.values()):
            continue
        numbers = scores[first].numbers
        differences = {}
        for name, of in list(scores.items())[1:]:
            others = of.numbers
            pairs = [value - others[key] for key, value in numbers.items() if key in others]
            differences[name] = facts(pairs, of.samples)
        found[output] = {
            "unit": unit,
            **{
                name: facts(list(of.numbers.values()), of.samples, share=unit == "share") for name, of in scores.items()
            },
            "difference": differences,
            "not_measured": {name: of.not_measured for name, of in scores.items()},
        }
    return found


def facts(values: Sequence[float], samples: int | None = None, *, share: bool = False) -> dict[str, Any]:
    """Mean and interval of values; `samples`: see `Scores`."""
    mean = sum(values) / len(values) if values else None
    interval = share_interval(int(sum(values)), len(values)) if share else mean_interval(values)
    return {"mean": mean, "interval": interval, "samples": len(values) if samples is None else samples}


BETTER: dict[Better, str] = {
    "higher": "higher",
    "lower": "lower",
    "as real": "close to the real videos",
}
"""How `better` is worded before the names of figures."""


def format_measurements(figures: Mapping[str, Any]) -> Iterator[str]:
    """Formats figures for people: a line for each, intervals in brackets, and what could not be measured.

    In a terminal that is narrower than the table, the columns are split into tables below each other.
    """
    some, *_ = figures.values()
    models = list(some["not_measured"])
    rows = [["figure", "unit", *models, *(f"minus {name}" for name in models[1:]), "samples"]]
    notes, has_intervals = [], False
    for name, figure in figures.items():
        first = figure[models[0]]
        told = [*(figure[model] for model in models), *figure["difference"].values()]
        has_intervals |= any(fact["interval"] is not None for fact in told)
        rows.append([name, figure["unit"], *map(format_mean, told), str(first["samples"])])
        for model, reasons in figure["not_measured"].items():
            notes += [f"{name}: {count} not measured ({model}): {reason}" for reason, count in reasons.items()]
        notes += [f"{name}: {note}" for note in figure.get("notes", [])]
    first, *widths = [max(map(len, column)) for column in zip(*rows)]
    columns = terminal_width(sys.stdout)
    parts = [range(len(widths))] if columns is None else fitting_columns(widths, columns - first)
    for number, part in enumerate(parts):
        if number:
            yield ""
        for name, *cells in rows:
            yield "  ".join([name.ljust(first), *(cells[column].ljust(widths[column]) for column in part)]).rstrip()
    if has_intervals:
        yield "in brackets: 95 % interval of the mean over the samples"
    for better, meaning in BETTER.items():
        if names := [name for name, figure in figures.items() if figure.get("better") == better]:
            yield f"{meaning} is better: {', '.join(names)}"
    yield from notes


def format_mean(fact: Mapping[str, Any]) -> str:
    if fact["mean"] is None:
        return "-"
    interval = "" if fact["interval"] is None else " [{:.4g}, {:.4g}]".format(*fact["interval"])
    return f"{fact['mean']:.4g}{interval}"
