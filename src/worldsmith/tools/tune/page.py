"""`tune.html`: the trials of a study over time, which settings matter, and all of them beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.monitor.page.formats import figure
from worldsmith.monitor.page.render import Page, section, write_html
from worldsmith.tools.tune.charts import Lines, shown, study_charts
from worldsmith.tools.tune.record import LEAST
from worldsmith.tools.tune.space import Space


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
