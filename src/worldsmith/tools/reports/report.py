"""`worldsmith report RUN…`: rebuilds the page of a run, or sets several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from worldsmith.actions.action import Action, Result
from worldsmith.config.errors import UserError

COMPARISON = "compare.html"


@dataclass(frozen=True, slots=True)
class ReportSources:
    """The runs that a page shows, and the file of the page."""

    folders: list[Path]
    page: Path


class Report(Action):
    """Writes the page of a run, report.html in its folder, or one page that compares several runs."""

    places: ClassVar[tuple[str, ...]] = ("runs",)
    aliases = {"-o": "out", "--output": "out"}

    class Config(Action.Config):
        runs: list[str]
        """Run folders: one for its page, several to compare them."""
        out: str | None = None
        """The file of a comparison; null: compare.html in the present folder."""

    config: Config

    def plan(self) -> Iterator[str]:
        sources = self.prepare()
        yield f"the page of {', '.join(map(str, sources.folders))} would be written to {sources.page}"

    def run(self) -> Result:
        from worldsmith.monitor.page.compare_page import write_comparison
        from worldsmith.monitor.page.run_page import write_page

        sources = self.prepare()
        folders = sources.folders
        written = write_page(folders[0]) if len(folders) == 1 else write_comparison(folders, sources.page)
        what = "the run page" if len(folders) == 1 else f"the comparison of {len(folders)} runs"
        facts = {"page": str(written.resolve()), "runs": [str(folder) for folder in folders]}
        return Result([f"{what}: {written.resolve()}"], facts)

    def prepare(self) -> ReportSources:
        """Finds the run folders and the page. Raises UserError for a path that is no run folder."""
        from worldsmith.monitor.page.render import FILE
        from worldsmith.monitor.page.run_files import require_run

        folders = [require_run(Path(run)) for run in self.config.runs]
        if not folders:
            raise UserError("worldsmith report: name a run folder, or several to compare them")
        if len(folders) == 1 and self.config.out is not None:
            raise UserError(f"-o is for comparisons; the page of one run is {folders[0] / FILE}, beside its videos")
        out = folders[0] / FILE if len(folders) == 1 else Path(self.config.out or COMPARISON)
        if not out.parent.is_dir():
            raise UserError(f"-o {out}: there is no folder {out.parent}")
        return ReportSources(folders, out)
