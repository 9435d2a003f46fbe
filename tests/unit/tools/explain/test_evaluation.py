"""How often explain is right about errors of public threads: the figures of the guide are recomputed from the table."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from worldsmith.tools.explain.causes import find_causes, patterns
from worldsmith.tools.explain.logs import split

TABLE: dict[str, dict[str, list[Any]]] = tomllib.loads((Path(__file__).parent / "evaluation.toml").read_text())
GUIDE = Path(__file__).parents[4] / "docs/explain.md"


def shown(text: str) -> list[int]:
    """Numbers of the rows that a log shows, the cause first."""
    return [cause.pattern.id for cause in find_causes(split(text, "log"))]


def verdict(expected: list[int], text: str) -> str:
    """The first cause counts; a consequence alone says that the cause is not known."""
    ids = shown(text)
    if not expected:
        return "wrong" if ids else "right"
    if not ids:
        return "unknown"
    if ids[0] in expected:
        return "right"
    if set(ids) & set(expected):
        return "partly"
    return "unknown" if patterns()[ids[0]].consequence else "wrong"


def test_the_halves_are_large_enough_and_have_no_thread_in_common() -> None:
    assert len(TABLE["A"]) >= 150
    assert len(TABLE["B"]) >= 100
    assert not set(TABLE["A"]) & set(TABLE["B"])
    assert all(set(expected) <= set(patterns()) for expected, _ in TABLE["A"].values())


def test_explain_is_right_about_the_threads_that_its_rules_were_written_with() -> None:
    verdicts = {source: verdict(*row) for source, row in TABLE["A"].items()}
    count = Counter(verdicts.values())
    bad = {source: found for source, found in verdicts.items() if found != "right"}
    assert count["right"] >= 0.90 * len(verdicts), bad
    assert count["wrong"] <= 0.02 * len(verdicts), bad


@pytest.mark.parametrize("source", TABLE["B"])
def test_a_thread_that_was_judged_still_shows_the_row_that_was_judged(source: str) -> None:
    """A change of rules that alters what is shown here voids the verdict: judge the thread again, or move it to A."""
    _, row, line = TABLE["B"][source]
    if line:
        assert (shown(line) or [0])[0] == row


def test_the_guide_has_the_verdicts_on_threads_that_no_rule_was_written_with() -> None:
    count = Counter(verdict for verdict, _, _ in TABLE["B"].values())
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())
    wanted = f"{count['right']} right, {count['partly']} partly, {count['wrong']} wrong and {count['unknown']} unknown"
    assert wanted in text
