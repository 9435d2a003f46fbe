"""`worldsmith report RUN…`: rebuilds the HTML report of a run, or compares several runs in one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from worldsmith.actions.action import Action, Result
from worldsmith.config.errors import UserError
from worldsmith.monitor.page.charts import charts, drop_single_values
from worldsmith.monitor.page.config_values import ABSENT, differences
from worldsmith.monitor.page.evaluations import compared
from worldsmith.monitor.page.formats import duration, format_count, format_float, size, time
from worldsmith.monitor.page.render import FILE, Page, section, write_html
from worldsmith.monitor.page.run_files import RunFiles, read_run, require_run
from worldsmith.monitor.page.run_page import BEST, samples_section, write_page
from worldsmith.monitor.page.samples import PageBudget, PromptSamples, rows
from worldsmith.monitor.page.status import Status, find_status

COMPARISON = "compare.html"
OPEN_DIFFERENCES = 12
"""Number of differing settings that are visible in a comparison before the list is expanded."""


@dataclass(frozen=True, slots=True)
class ReportSources:
    """Folders of the runs that a report shows, and the path of its HTML file."""

    folders: list[Path]
    page: Path


class Report(Action):
    """Writes the HTML report of a run (report.html in its folder), or an HTML file that compares several runs."""

    places: ClassVar[tuple[str, ...]] = ("runs",)
    aliases = {"-o": "out", "--output": "out"}

    class Config(Action.Config):
        runs: list[str]
        """Run folders: one run writes its report, several runs write a comparison."""
        out: str | None = None
        """HTML file of a comparison; null: compare.html in the current folder."""

    config: Config

    def plan(self) -> Iterator[str]:
        sources = self.prepare()
        yield f"the report of {', '.join(map(str, sources.folders))} would be written to {sources.page}"

    def run(self) -> Result:
        sources = self.prepare()
        folders = sources.folders
        written = write_page(folders[0]) if len(folders) == 1 else write_comparison(folders, sources.page)
        what = "the run page" if len(folders) == 1 else f"the comparison of {len(folders)} runs"
        facts = {"page": str(written.resolve()), "runs": [str(folder) for folder in folders]}
        return Result([f"{what}: {written.resolve()}"], facts)

    def prepare(self) -> ReportSources:
        """Returns the run folders and the path of the HTML file to write.

        Raises UserError if a path is not a run folder or if `out` cannot be used.
        """
        folders = [require_run(Path(run)) for run in self.config.runs]
        if not folders:
            raise UserError("worldsmith report: expected one run folder, or several to compare")
        if len(folders) == 1 and self.config.out is not None:
            raise UserError(
                f"-o applies to comparisons; the report of one run is {folders[0] / FILE}, next to its videos"
            )
        out = folders[0] / FILE if len(folders) == 1 else Path(self.config.out or COMPARISON)
        if not out.parent.is_dir():
            raise UserError(f"-o {out}: the folder {out.parent} does not exist")
        return ReportSources(folders, out)


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Writes the HTML file `out`, which compares the runs in `folders`, and returns its path.

    Raises UserError if a run cannot be read, OSError if the file cannot be written.
    """
    place = PageBudget(out.resolve().parent)
    return write_html(comparison([read_run(folder) for folder in folders], place), out)


def comparison(runs: Sequence[RunFiles], place: PageBudget) -> Page:
    """Builds the HTML page that compares several runs: states, settings, results, evaluation, samples and curves.

    `place` limits the size of the media that are embedded in the page.
    """
    names = distinct_names(runs)
    states = [find_status(run) for run in runs]
    shown, measured = side_by_side(runs, names, place), compared(runs, names)
    for run in runs:
        run.report_outside()
    problems = [f"{name}: {problem}" for run, name in zip(runs, names, strict=True) for problem in run.problems]
    series = [(name, run.metrics.series) for run, name in zip(runs, names, strict=True)]
    curves, single = drop_single_values(charts(series))
    thinned = any(series.thinned for run in runs for series in run.metrics.series.values())
    notes = ["Long curves are downsampled; metrics.jsonl has all values."] if thinned else []
    notes += [single] if single else []
    about = [
        {"name": name, "folder": str(run.folder), "status": status}
        for run, name, status in zip(runs, names, states, strict=True)
    ]
    columns = [results_of(run, status) for run, status in zip(runs, states, strict=True)]
    rows_of_results = {label: [column[label] for column in columns] for label in columns[0]}
    results = {label: values for label, values in rows_of_results.items() if set(values) != {ABSENT}}
    sections = [
        section("comparison", "Runs", runs=about, problems=problems),
        section(
            "differences", "Settings", names=names, differences=differences(runs), open_differences=OPEN_DIFFERENCES
        ),
        section("results", "Results", names=names, results=results),
        *([section("evaluation", "Evaluation", evaluations=measured, is_comparison=True)] if measured else []),
        samples_section(shown),
        section("curves", "Curves", empty=not curves, notes=notes),
    ]
    at_work = any(status.at_work for status in states)
    return Page(f"{len(runs)} runs", sections, curves, runs=len(runs), at_work=at_work, linked=place.linked)


def distinct_names(runs: Sequence[RunFiles]) -> list[str]:
    """Returns the name of each run in a comparison: the shortest suffix of its path that no other run has."""
    ends = [[str(Path(*run.folder.resolve().parts[-length:])) for length in range(1, 99)] for run in runs]
    counted = [Counter(names[length] for names in ends) for length in range(98)]
    return [next((n for n, count in zip(names, counted, strict=True) if count[n] == 1), names[-1]) for names in ends]


def side_by_side(runs: Sequence[RunFiles], names: Sequence[str], place: PageBudget) -> list[PromptSamples]:
    """Returns the newest samples of each run, grouped by prompt; prompts that are in the most runs come first.

    Removes the older samples from `samples` of each run, in place.

    `names` are the names of the runs; `place` limits the size of the media in the page.
    """
    found: dict[tuple[str, str], PromptSamples] = {}
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


def results_of(run: RunFiles, status: Status) -> dict[str, str]:
    """Returns the results of a run by label, as in the table of a comparison; `ABSENT` for those that it lacks."""
    latest, loss, validation = run.metrics.latest, run.metrics.series.get("loss"), run.metrics.series.get(BEST)
    speed, memory = latest.get("tokens_per_second"), latest.get("peak_memory_bytes")
    best = "" if validation is None else f"{format_float(validation.least[1])} at step {validation.least[0]:,}"
    found = {
        "step": format_count(status.step) + (f" of {format_count(status.max_iter)}" if status.max_iter else ""),
        "training loss": format_float(loss.mean_of_newest()[0]) if loss else "",
        "best validation loss": best,
        "speed": f"{format_count(round(speed))} tokens/s" if speed else "",
        "peak memory": size(memory) if memory else "",
        "duration": duration(status.elapsed_seconds) if status.elapsed_seconds else "",
        "started": time(status.started) if status.started else "",
    }
    return {label: text or ABSENT for label, text in found.items()}
