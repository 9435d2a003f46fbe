"""HTML report of one run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.monitor.page.charts import charts, drop_single_values
from worldsmith.monitor.page.config_values import settings
from worldsmith.monitor.page.evaluations import evaluations
from worldsmith.monitor.page.formats import duration, format_count, format_float, plural, time, words
from worldsmith.monitor.page.next_steps import next_steps
from worldsmith.monitor.page.plan_check import (
    BOUNDS,
    gpu_names,
    list_advice,
    list_phases,
    plan_checks,
    why_incomparable,
)
from worldsmith.monitor.page.render import FILE, Page, Section, fact, section, write_html
from worldsmith.monitor.page.run_files import RunFiles, lookup, read_run
from worldsmith.monitor.page.samples import (
    HELD_OUT,
    OPEN_PROMPTS,
    PageBudget,
    PromptSamples,
    count_rows,
    group_by_prompt,
    rows,
    scores,
)
from worldsmith.monitor.page.series import MetricsReader, Series
from worldsmith.monitor.page.status import Status, find_status, when
from worldsmith.monitor.short_text import short_number

logger = logging.getLogger(__name__)

LOUD = ("warning", "error")
SHOWN_ENTRIES = 50
"""Max number of quarantined samples that are shown per list."""
BEST = "val/loss"
COUNTS = {
    "loaded/samples": "samples read",
    "loaded/cache_hit": "clips read from the latent cache",
    "loaded/cache_miss": "clips encoded, because they were not in the latent cache",
    "loaded/cache_corrupt": "clips encoded again, because their file in the latent cache was damaged",
    "loaded/captions_truncated": "captions truncated to max_caption_tokens",
    "loaded/variable_rate": "clips with unevenly spaced frames",
    "loaded/windows_shortened": "windows shortened to the end of their clip",
}
"""Names of the data loader's counts on the page, by their names in metrics.jsonl."""
REPORT = {
    "dataset": "data set",
    "positions": "samples in an epoch",
    "looked_at": "samples inspected at the start",
    "cap": "token limit of a sample",
    "over_cap": "samples with too many tokens",
    "needed_cap": "limit that would keep them all",
    "cells": "latents of an epoch",
}
"""Names of the counts of a data report on the page, by the fields of `DataReport`."""


def write_page(folder: Path, *, known: Mapping[str, Any] | None = None) -> Path:
    """Builds `report.html` in a run folder and returns its path.

    Args:
        folder: Run folder.
        known: Values by name, such as "state" and "step", that replace those in `status.json`; given by the process
            that trains the run. None: only the files are used.

    Raises:
        UserError: If `folder` is not a run folder.
        OSError: If the report cannot be written.
    """
    page = page_of(read_run(folder), PageBudget(folder), known=known)
    return write_html(page, folder / FILE)


def refresh_page(below: Path) -> None:
    """Rebuilds the `report.html` of the run whose folder contains the path `below`, if this file exists.

    Best effort: errors are logged as warnings.
    """
    for folder in below.resolve().parents:
        if not all((folder / name).is_file() for name in (FILE, "config.yaml")):
            continue
        try:
            write_page(folder)
        except (UserError, OSError) as error:
            logger.warning("the page of %s could not be rebuilt: %s", folder, error)


def live_page(folder: Path, metrics: MetricsReader) -> Page:
    """Builds the report of a run for the live server; images and videos are linked, not embedded.

    Args:
        folder: Run folder.
        metrics: Reader of an earlier call, which reads only new lines of `metrics.jsonl`.
    """
    page = page_of(read_run(folder, metrics), PageBudget(folder, room=0))
    page.live = True
    return page


def page_of(run: RunFiles, budget: PageBudget, *, known: Mapping[str, Any] | None = None) -> Page:
    status = find_status(run, known)
    curves, single = drop_single_values(charts([("", run.metrics.series)]))
    notes = list(filter(None, (thinned_note(run), missing_note(run), single)))
    sections = list(build_sections(run, status, budget, section("curves", "Curves", empty=not curves, notes=notes)))
    title = f"{run.name}: {status.state}, step {status.step}"
    return Page(title, sections, curves, at_work=status.at_work, linked=budget.linked)


def build_sections(run: RunFiles, status: Status, budget: PageBudget, curves: Section) -> Iterator[Section]:
    """Yields the sections of the report in order.

    The section with suggested commands is the second one if the run has ended before its last step.

    Args:
        run: Files of the run.
        status: Status of the run.
        budget: Embeds or links images and videos.
        curves: Rendered section with the charts.
    """
    job = [lookup(run.config, f"job.{name}") for name in ("project", "group")]
    found, measured = rows(run, budget), evaluations(run, budget)
    run.report_outside()
    where = " / ".join(str(name) for name in job if name) or str(run.folder)
    facts, setup = list(result_facts(run, status)), list(setup_facts(run))
    yield section("overview", "Overview", run=run, status=status, where=where, facts=facts, setup=setup)
    advice = section("next", "What next", steps=next_steps(run, status))
    is_urgent = not status.at_work and status.state != "finished"
    if is_urgent:
        yield advice
    results = [samples_section(found, more=count_rows(run) - len(found))]
    if measured:
        results.append(section("evaluation", "Evaluation", evaluations=measured, is_comparison=False))
    yield from [*results, curves] if found else [curves, *results]
    if run.plan:
        yield plan_section(run)
    if not is_urgent:
        yield advice
    messages = [{"step": "–", "level": "info", "text": "", **message} for message in run.messages]
    yield section("messages", "Messages", messages=messages, loud=[m for m in messages if m["level"] in LOUD])
    yield data_section(run)
    found_settings = settings(run)
    changed = sum(setting.changed for setting in found_settings)
    yield section("config", "Config", settings=found_settings, known=bool(run.origins), changed=changed)
    launch = {name: value for name, value in run.launch.items() if name != "earlier_launches"}
    earlier = earlier_launches(run)
    yield section("environment", "Environment", launch=launch, earlier=earlier, environment=run.environment)


def earlier_launches(run: RunFiles) -> list[tuple[str, str]]:
    """Returns (start time, command) of each earlier launch of the run as text, oldest first."""
    found = run.launch.get("earlier_launches")
    launches = [launch for launch in found if isinstance(launch, Mapping)] if isinstance(found, list) else []
    return [
        (format_start(launch.get("started_at")), str(launch.get("cmd") or launch.get("unreadable") or "not known"))
        for launch in launches
    ]


def format_start(text: Any) -> str:
    started = when(text)
    return "not known" if started is None else time(started)


def samples_section(rows: Sequence[PromptSamples], *, more: int = 0) -> Section:
    """Renders the report section with the samples that a run has generated.

    Args:
        rows: Samples of each prompt.
        more: Number of prompts that are not shown.
    """
    groups = group_by_prompt(rows)
    given = {"groups": groups, "open_prompts": OPEN_PROMPTS, "scores": scores(rows), "more": more}
    return section("samples", "Samples", has_held_out=any(row.source == HELD_OUT for row in rows), **given)


def result_facts(run: RunFiles, status: Status) -> Iterator[dict[str, str]]:
    """Yields header entries (`name`, `value`, `note`) on the results so far, such as loss, speed and peak memory."""
    series, latest = run.metrics.series, run.metrics.latest
    if loss := series.get("loss"):
        yield training_loss(loss)
    if validation := series.get(BEST):
        step, value = validation.least
        last = "" if validation.last[0] == step else f"; last {format_float(validation.last[1])}"
        yield fact("Best validation loss", format_float(value), f"at step {format_count(step)}{last}")
    if speed := latest.get("tokens_per_second"):
        yield fact(
            "Speed",
            f"{format_count(round(speed))} tokens/s",
            f"{format_float(latest.get('step_seconds'))} s/step",
        )
    note = "since the last start" if run.launch.get("earlier_launches") else ""
    if memory := latest.get("peak_memory_bytes"):
        yield fact("Peak memory", f"{memory / 2**30:.3g} GiB", note)
    if status.elapsed_seconds:
        name = "Elapsed" if status.at_work else "Duration"
        yield fact(name, duration(status.elapsed_seconds), note)
    yield fact("Checkpoints", str(len(run.checkpoints)), run.checkpoints[-1] if run.checkpoints else "none yet")
    counters = {"skipped_total": "Skipped steps", "failed_saves": "Failed saves", "failed_uploads": "Failed uploads"}
    for name, title in counters.items():
        if latest.get(name):
            yield fact(title, format_count(latest[name]))


def training_loss(loss: Series) -> dict[str, str]:
    """Returns the header entry (`name`, `value`, `note`) on the training loss: newest mean, and first value as note."""
    mean, count = loss.mean_of_newest()
    first = f"first {format_float(loss.buckets[0].total / loss.buckets[0].count)}"
    note = f"mean of the last {count} logged steps; {first}" if count > 1 else first
    return fact("Training loss", format_float(mean), note)


def setup_facts(run: RunFiles) -> Iterator[dict[str, str]]:
    """Yields the known header entries (`name`, `value`, `note`) on model, learning rate, data and git commit."""
    if model := lookup(run.config, "model.name"):
        total, trained, note = run.parameters.get("parameters"), run.parameters.get("trained"), ""
        if isinstance(total, int) and isinstance(trained, int) and total > 0:
            note = f"{short_number(total)} parameters, {100 * trained / total:.3g} % trained"
        yield fact("Model", str(model), note)
    rate = lookup(run.config, "optimizer.lr")
    if isinstance(rate, int | float):
        schedule = str(lookup(run.config, "scheduler.type") or "").rpartition(".")[2]
        steps = lookup(run.config, "scheduler.warm_up_steps")
        warm_up = steps[0] if isinstance(steps, list) and steps else steps
        details = [schedule, f"{plural(warm_up, 'warm-up step')}" if isinstance(warm_up, int) and warm_up else ""]
        yield fact("Learning rate", f"{rate:g}", ", ".join(filter(None, details)))
    latest = run.metrics.latest
    if samples := latest.get("samples"):
        note = f"{format_count(latest['tokens'])} tokens per step" if latest.get("tokens") else "per step"
        yield fact("Last batch", plural(samples, "sample"), note)
    if names := dataset_names(run):
        kind = "clip" if lookup(run.config, "job.task") == "vfm" else "record"
        records, held_out = (lookup(run.data_report, f"{split}.records") for split in ("train", "val"))
        details = [plural(records, kind)] if isinstance(records, int) else []
        details += [f"{format_count(held_out)} for validation"] if isinstance(held_out, int) else []
        yield fact("Data", ", ".join(names), ", ".join(details))
    if commit := lookup(run.environment, "git.commit"):
        changed = lookup(run.environment, "git.changed_files") or []
        details = [str(lookup(run.environment, "git.branch", ""))]
        details += [plural(len(changed), "changed file")] if isinstance(changed, list) and changed else []
        yield fact("Commit", str(commit)[:10], ", ".join(filter(None, details)))


def dataset_names(run: RunFiles) -> list[str]:
    """Returns the last parts of the paths of the training data, without repetitions."""
    dataset = lookup(run.config, "dataloader_train.dataset")
    parts = lookup(dataset, "datasets") if isinstance(dataset, Mapping) else None
    found = [dataset, *(parts.values() if isinstance(parts, Mapping) else [])]
    paths = [part["path"] for part in found if isinstance(part, Mapping) and part.get("path")]
    return list(dict.fromkeys(Path(str(path)).name for path in paths))


def data_section(run: RunFiles) -> Section:
    """Renders the report section on the data: numbers of read and skipped samples, and quarantined samples."""
    latest = run.metrics.latest
    counts = {
        kind: {
            COUNTS.get(name, words(name.removeprefix(f"{prefix}/"))): value
            for name, value in latest.items()
            if name.startswith(f"{prefix}/")
        }
        for kind, prefix in (("used", "loaded"), ("left_out", "rejected"))
    }
    left_out = {}
    for name, entries in run.left_out.items():
        reasons = Counter(str(entry.get("reason")) for entry in entries)
        left_out[name] = {
            "total": len(entries),
            "reasons": ", ".join(f"{reason} {number}" for reason, number in reasons.most_common()),
            "first": [{"key": "", "reason": "", "detail": "", **entry} for entry in entries[:SHOWN_ENTRIES]],
            "more": max(0, len(entries) - SHOWN_ENTRIES),
        }
    report = {split: named_counts(found) for split, found in run.data_report.items() if isinstance(found, Mapping)}
    return section("data", "Data", counts=counts, left_out=left_out, report=report)


def named_counts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a data report (a `DataReport` as dict) with its field names replaced by the descriptions in `REPORT`."""
    return {REPORT.get(name, name): value for name, value in report.items()}


def plan_section(run: RunFiles) -> Section:
    """Renders the report section that compares the values planned by `worldsmith plan` with measured values."""
    checks, planned = plan_checks(run), list(list_phases(run.plan))
    gpus, gpu = run.plan.get("gpus"), lookup(run.plan, "gpu.name")
    held = next((check.measured for check in checks if check.kind == "memory"), None)
    bounds = ", ".join(f"{kind} within {bound:.0%}" for kind, bound in BOUNDS.items())
    return section(
        "plan",
        "Plan",
        planned=f"Planned for {gpus} × {gpu}; data of a step: {run.plan.get('data', 'unknown')}.",
        measured=", ".join(dict.fromkeys(gpu_names(run))) or "CPUs, without a GPU",
        incomparable=why_incomparable(run),
        checks=checks,
        advice=list(list_advice(run, checks)),
        phases=planned,
        held=held,
        most=max([1, held or 0, *(count for _, count in planned)]),
        bounds=f"A value is as planned if it is close to the planned value or range: {bounds}.",
    )


def thinned_note(run: RunFiles) -> str:
    """Returns the sentences that explain downsampled curves; "" if no curve is downsampled."""
    thinned = [series for series in run.metrics.series.values() if series.thinned]
    if not thinned:
        return ""
    longest = max(thinned, key=lambda series: series.values)
    values, points = format_count(longest.values), format_count(len(longest.buckets))
    return (
        f"Curves of up to {values} values are shown with {points} points: each is the mean of consecutive values, with "
        "a band from their minimum to their maximum. All values are in metrics.jsonl."
    )


def missing_note(run: RunFiles) -> str:
    shown = {name: number for name, number in run.metrics.missing.items() if name in run.metrics.series}
    text = ", ".join(f"{name} {number} times" for name, number in shown.items())
    return f"Non-finite values are not shown: {text}." if text else ""
