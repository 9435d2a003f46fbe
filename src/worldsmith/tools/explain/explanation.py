"""What to say of the causes that were found: in full, as data, and in the few lines after a crash."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from worldsmith.tools.explain.causes import Cause, find_causes
from worldsmith.tools.explain.facts import FACTS, Run
from worldsmith.tools.explain.logs import split
from worldsmith.tools.explain.remedies import Remedy, render

LONGEST = 240
"""Letters of a line of a log."""
AFTER_CRASH = 2
"""Remedies that are named right after a crash."""


def remedies_for(cause: Cause, run: Run | None) -> list[Remedy]:
    found = (render(sentence, run, cause.groups) for sentence in cause.pattern.remedies)
    return [remedy for remedy in found if remedy is not None]


def facts_for(cause: Cause, run: Run | None) -> list[str]:
    if run is None:
        return []
    return [fact for name in cause.pattern.facts if (fact := FACTS[name](run))]


def in_full(cause: Cause, run: Run | None) -> Iterator[str]:
    """Name, where and how often, the line itself, what it means, what to do, what the run has."""
    yield f"{cause.pattern.name} (pattern {cause.pattern.id})"
    yield f"  {where(cause)}: {cut(cause.text)}"
    yield f"  {cause.pattern.means}"
    yield from (f"  - {remedy.text}" for remedy in remedies_for(cause, run))
    if facts := facts_for(cause, run):
        yield f"  here: {'; '.join(facts)}"


def as_data(cause: Cause, run: Run | None) -> Mapping[str, Any]:
    remedies = remedies_for(cause, run)
    return {
        "id": cause.pattern.id,
        "name": cause.pattern.name,
        "consequence": cause.pattern.consequence,
        "means": cause.pattern.means,
        "try": [remedy.text for remedy in remedies],
        "words": [word for remedy in remedies for word in remedy.words],
        "run": facts_for(cause, run),
        "text": cause.text,
        "file": cause.place.source,
        "line": cause.place.line,
        "count": len(cause.places),
        "ranks": cause.ranks,
    }


def where(cause: Cause) -> str:
    place, count, ranks = cause.place, len(cause.places), cause.ranks
    rank = "" if place.rank is None else f", rank {place.rank}"
    on = f" on ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else ""
    return f"{place.source}:{place.line}{rank}{f' ({count} times{on})' if count > 1 else ''}"


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def after_error(error: BaseException, run: Run) -> list[str]:
    """The few lines to print after an error that has ended a run; none where it is not known."""
    return after_text("".join(traceback.format_exception(error)), run)


def after_text(text: str, run: Run | None) -> list[str]:
    """The same for the text of an error. A doubt is not said here: the error itself stands right above."""
    causes = [cause for cause in find_causes(split(text, "the error")) if not cause.pattern.fallback]
    if not causes:
        return []
    cause = causes[0]
    lines = [f"what this means: {cause.pattern.means}"]
    lines += [f"try: {remedy.text}" for remedy in remedies_for(cause, run)[:AFTER_CRASH]]
    if run is not None and run.folder is not None and run.folder.is_dir():
        lines.append(f"more: worldsmith explain {shlex.quote(str(run.folder))}")
    return lines
