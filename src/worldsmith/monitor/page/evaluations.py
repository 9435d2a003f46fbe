"""Reads the results of evaluations and rollouts in a run folder: metrics with intervals, images and videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldsmith.monitor.page.formats import format_float, plural, words
from worldsmith.monitor.page.run_files import RunFiles, lookup
from worldsmith.monitor.page.samples import PageBudget, Shown, media
from worldsmith.monitor.short_text import FEW_SAMPLES, WEIGHTS_NAMES

PICTURES = {"confusion.png": "confusion matrix", "contact_sheet.png": "videos of each model"}
WIDE = "contact_sheet.png"
MOST_PARTS = 12
"""Max number of task types and data slices of an evaluation whose accuracy is shown."""

Rows = dict[str, list[str]]
"""Cell texts of each metric, by metric name."""


@dataclass(slots=True)
class Evaluation:
    """Table of metrics, and media, of one result folder of `worldsmith evaluate` or `worldsmith rollout`."""

    name: str
    """Path of the result folder, relative to the run folder."""
    about: str
    """Summary in one line: number of records, step, weights and dataset."""
    columns: list[str]
    """Column titles: names of the measured models or of the compared runs; one empty string for a single model."""
    rows: Rows
    pictures: list[tuple[str, str, bool]] = field(default_factory=list)
    """(`src`, description, whether the image needs the full width of the report) of each image."""
    videos: list[Shown] = field(default_factory=list)
    """Videos of the episodes of a rollout."""


def evaluations(run: RunFiles, budget: PageBudget | None) -> list[Evaluation]:
    """Returns the evaluations of a run that have metrics, one per result folder.

    Args:
        run: Files of the run.
        budget: Limits of embedded images; images above the limits are linked. None: images are omitted.
    """
    found = []
    for file, facts in run.evaluations.items():
        folder = Path(file).parent
        columns, rows = read_table(facts)
        if rows:
            sources = {name: budget and budget.picture(run, str(folder / name)) for name in PICTURES}
            pictures = [(source, PICTURES[name], name == WIDE) for name, source in sources.items() if source]
            videos = list(episode_videos(run, folder, facts, budget)) if budget else []
            found.append(Evaluation(str(folder), describe_evaluation(facts), columns, rows, pictures, videos))
    return found


def episode_videos(run: RunFiles, folder: Path, facts: Mapping[str, Any], budget: PageBudget) -> Iterator[Shown]:
    """Yields the videos of the episodes in `facts`, the parsed results file of a rollout in `folder` of the run."""
    for episode in get_episodes(facts):
        file, score = folder / f"videos/seed_{episode.get('seed')}.mp4", format_metric(episode.get("score"))
        if run.find_media(str(file)):
            outcome = "success" if episode.get("success") else episode.get("failure") or "no success"
            yield media(run, str(file), budget, f"seed {episode['seed']} · {outcome} · best {score}")


def compared(runs: Sequence[RunFiles], names: Sequence[str]) -> list[Evaluation]:
    """Compares the evaluations of several runs: one table per result folder, with a column for each run.

    Args:
        runs: Files of each run.
        names: Names of the runs, used as column titles.
    """
    own = [{one.name: one for one in evaluations(run, None)} for run in runs]
    found = []
    for folder in dict.fromkeys(name for of in own for name in of):
        rows = dict.fromkeys(row for of in own if folder in of for row in of[folder].rows)
        columns = [of[folder].rows if folder in of else {} for of in own]
        table = {row: [next(iter(column.get(row, [])), "–") for column in columns] for row in rows}
        about = dict.fromkeys(of[folder].about for of in own if folder in of)
        found.append(Evaluation(folder, "; ".join(filter(None, about)), list(names), table))
    return found


def read_table(facts: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Returns (column titles, rows) of the table for a parsed results file; no rows if it has no known metrics."""
    if isinstance(facts.get("figures"), Mapping):
        return video_table(facts["figures"])
    if "success_rate" in facts:
        return [""], {name: [text] for name, text in rollout_metrics(facts)}
    if "task" in facts:
        return [""], {name: [text] for name, text in answer_metrics(facts)}
    models = {
        name: results
        for name, results in facts.items()
        if isinstance(results, Mapping) and is_number(results.get("adherence"))
    }
    rows: Rows = {"adherence": [format_metric(results["adherence"]) for results in models.values()]} if models else {}
    for name in {name: None for results in models.values() for name in get_table(results, "by_attribute")}:
        rows[words(name)] = [format_metric(get_table(results, "by_attribute").get(name)) for results in models.values()]
    return list(models), rows


def video_table(figures: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Returns (model names, rows) of the table for an evaluation of generated videos.

    `figures` maps each metric to a dict with `unit`, `better` ("higher" or "lower"), `not_measured` (by model), and by
    model a dict with `mean`, `interval` and `samples`.
    """
    known = {name: metric for name, metric in figures.items() if isinstance(metric, Mapping)}
    columns = list(dict.fromkeys(model for metric in known.values() for model in get_table(metric, "not_measured")))
    rows = {}
    for name, metric in known.items():
        unit = f", {metric['unit']}" if metric.get("unit") else ""
        better = f" ({metric['better']} is better)" if metric.get("better") else ""
        values = [get_table(metric, column) for column in columns]
        count = min((value["samples"] for value in values if value.get("samples")), default=0)
        few = f" of {plural(count, 'sample')}" if 0 < count < FEW_SAMPLES else ""
        rows[f"{words(name)}{unit}{better}{few}"] = [
            format_metric(value.get("mean"), value.get("interval")) for value in values
        ]
    return columns, rows


def rollout_metrics(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (metric, formatted value) of a rollout; `facts` is the parsed results file."""
    score = lookup(facts, "settings.score") or "reward"
    for name, label in (("success_rate", "success rate"), ("mean_score", f"mean best {score}")):
        yield f"{label} (higher is better)", format_metric(facts.get(name), facts.get(f"{name}_interval"))
    failures = get_table(facts, "failures")
    kinds = ", ".join(f"{words(str(kind))} {count}" for kind, count in failures.items())
    yield "failed episodes", f"{sum(filter(is_number, failures.values()))}{f' ({kinds})' if kinds else ''}"
    yield "mean steps of an episode", format_metric(facts.get("mean_steps"))
    if facts.get("clipped_actions"):
        yield "actions outside of the action space", format_metric(facts["clipped_actions"])


def answer_metrics(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (metric, formatted value) of an evaluation of answers: overall, by task type and by data slice.

    `facts` is the parsed results file.
    """
    for name, value in facts.items():
        interval = facts.get(f"{name}_interval", facts.get(f"{name.removesuffix('_correlation')}_interval"))
        if is_number(value) and isinstance(value, float) and name != "coverage":
            yield words(name), format_metric(value, interval)
    if facts.get("unparsed"):
        yield "answers that could not be parsed", format_metric(facts["unparsed"])
    parts = [(kind, found) for kind, found in get_table(facts, "per_task").items()]
    for name, values in get_table(facts, "slices").items():
        parts += [
            (f"{words(name)} {part}", found) for part, found in (values if isinstance(values, Mapping) else {}).items()
        ]
    for name, found in parts[:MOST_PARTS]:
        if isinstance(found, Mapping):
            yield (
                f"accuracy of {name} ({found.get('total')})",
                format_metric(found.get("accuracy"), found.get("accuracy_interval")),
            )


def describe_evaluation(facts: Mapping[str, Any]) -> str:
    """Summarizes a parsed results file in one line: number of records by status, step, weights and dataset.

    For a rollout: environment, policy and settings.
    """
    if "success_rate" in facts:
        return describe_rollout(facts)
    status = ", ".join(f"{words(str(name))} {count}" for name, count in get_table(facts, "status").items())
    iteration, weights = facts.get("iteration"), facts.get("weights")
    parts = [
        f"{facts['num_records']} records: {status}" if facts.get("num_records") else "",
        f"step {iteration}" if iteration is not None else "",
        WEIGHTS_NAMES.get(weights, f"{weights} weights") if weights else "",
        f"data {facts['dataset']}" if facts.get("dataset") else "",
    ]
    return " · ".join(filter(None, parts))


def describe_rollout(facts: Mapping[str, Any]) -> str:
    """Summarizes the parsed results file of a rollout in one line; settings that are None are omitted."""
    settings, about = get_table(facts, "settings"), get_table(get_table(facts, "policy_info"), "about")
    named = {
        f"{plural(len(get_episodes(facts)), 'episode')} of": settings.get("environment"),
        "policy": about.get("run") or facts.get("policy"),
        "step": about.get("iteration"),
        "weights": about.get("weights"),
        **{"solver steps": about.get("steps"), "guidance": about.get("guidance"), "shift": about.get("shift")},
        **{words(name): settings.get(name) for name in ("seed", "horizon", "max_steps", "instruction")},
    }
    return " · ".join(f"{name} {value}" for name, value in named.items() if value not in (None, ""))


def format_metric(value: Any, interval: Any = None) -> str:
    """Formats a metric and its interval (low, high), such as "0.52 [0.41, 0.63]"; "–" if `value` is not a number."""
    if not is_number(value):
        return "–"
    bounds = (
        interval if isinstance(interval, Sequence) and len(interval) == 2 and all(map(is_number, interval)) else None
    )
    text = format_float(value, 3)
    return f"{text} [{format_float(bounds[0], 3)}, {format_float(bounds[1], 3)}]" if bounds else text


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def get_episodes(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = facts.get("episodes")
    return [episode for episode in found if isinstance(episode, Mapping)] if isinstance(found, list) else []


def get_table(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}
