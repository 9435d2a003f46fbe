"""Several runs on one page: their curves in the same charts, what differs in their configs, samples side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from worldsmith.monitor.page.charts import charts
from worldsmith.monitor.page.evaluations import compared
from worldsmith.monitor.page.formats import count, figure
from worldsmith.monitor.page.render import Page, section, write_html
from worldsmith.monitor.page.run_files import RunFiles, read_run
from worldsmith.monitor.page.run_page import BEST, samples_section
from worldsmith.monitor.page.samples import Place, Row, rows
from worldsmith.monitor.page.settings import differences
from worldsmith.monitor.page.status import find_status


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Raises UserError or OSError."""
    place = Place(out.resolve().parent)
    return write_html(comparison([read_run(folder) for folder in folders], place), out)


def comparison(runs: Sequence[RunFiles], place: Place) -> Page:
    names = names_of(runs)
    states = [find_status(run) for run in runs]
    about = [
        {"name": name, "folder": str(run.folder), "status": status, "loss": last_loss(run), "best": best_loss(run)}
        for run, name, status in zip(runs, names, states, strict=True)
    ]
    shown, measured = side_by_side(runs, names, place), compared(runs, names)
    for run in runs:
        run.report_outside()
    problems = [f"{name}: {problem}" for run, name in zip(runs, names, strict=True) for problem in run.problems]
    curves = charts([(name, run.metrics.series) for run, name in zip(runs, names, strict=True)])
    thinned = any(series.thinned for run in runs for series in run.metrics.series.values())
    note = "Long curves are drawn with fewer points; all values are in metrics.jsonl." if thinned else ""
    sections = [
        section("comparison", "Runs", runs=about, problems=problems),
        section("curves", "Curves", empty=not curves, thinned=note, missing=""),
        samples_section(shown),
        *([section("evaluation", "Evaluation", evaluations=measured)] if measured else []),
        section("differences", "Config", names=names, differences=differences(runs)),
    ]
    at_work = any(status.at_work for status in states)
    return Page(f"{len(runs)} runs", sections, curves, runs=len(runs), at_work=at_work, linked=place.linked)


def names_of(runs: Sequence[RunFiles]) -> list[str]:
    """As much of the end of each path as tells the runs apart."""
    ends = [[str(Path(*run.folder.resolve().parts[-length:])) for length in range(1, 99)] for run in runs]
    counted = [Counter(names[length] for names in ends) for length in range(98)]
    return [next((n for n, count in zip(names, counted, strict=True) if count[n] == 1), names[-1]) for names in ends]


def side_by_side(runs: Sequence[RunFiles], names: Sequence[str], place: Place) -> list[Row]:
    """The newest samples of each run, by prompt, first the prompts that most runs have."""
    found: dict[tuple[str, str], Row] = {}
    shares: Counter[tuple[str, str]] = Counter()
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        newest = max((s["step"] for s in run.samples if isinstance(s.get("step"), int)), default=None)
        run.samples = [sample for sample in run.samples if sample.get("step") == newest]
        for row in rows(run, place, prefix=name, index=index):
            shares[row.key] += 1
            if row.key in found:
                found[row.key].shown += row.shown
                found[row.key].real = found[row.key].real or row.real
            else:
                found[row.key] = row
    return sorted(found.values(), key=lambda row: -shares[row.key])


def last_loss(run: RunFiles) -> str:
    loss = run.metrics.series.get("loss")
    return figure(loss.last[1]) if loss else "–"


def best_loss(run: RunFiles) -> str:
    validation = run.metrics.series.get(BEST)
    return f"{figure(validation.least[1])} at step {count(validation.least[0])}" if validation else "–"
