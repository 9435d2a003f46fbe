"""How often explain is right about errors of public threads: the verdicts are recomputed from the table."""

import hashlib
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from worldsmith.actions.explain.causes import find_causes
from worldsmith.actions.explain.logs import split
from worldsmith.actions.explain.patterns import patterns

TABLE: dict[str, dict[str, tuple[list[int], str]]] = tomllib.loads(
    (Path(__file__).parent / "evaluation.toml").read_text()
)


def verdict(expected: list[int], text: str) -> str:
    """The first cause counts; a consequence alone says that the cause is not known."""
    causes = find_causes(split(text, "log"))
    ids = [cause.pattern.id for cause in causes]
    if not expected:
        return "wrong" if ids else "right"
    if not ids:
        return "unknown"
    if ids[0] in expected:
        return "right"
    if set(ids) & set(expected):
        return "partly"
    return "unknown" if causes[0].pattern.consequence else "wrong"


def test_the_table_is_large_enough_and_split_by_the_rule() -> None:
    """B must not follow from what rules were written with, so its threads are those of an odd digit."""
    assert set(TABLE) == {"A", "B"}
    assert len(TABLE["A"]) >= 150
    assert not set(TABLE["A"]) & set(TABLE["B"])
    for half, rows in TABLE.items():
        for source, (expected, _) in rows.items():
            digit = int(hashlib.sha256(source.encode()).hexdigest()[0], 16)
            assert half == "A" or digit % 2 == 1, source
            assert set(expected) <= set(patterns()), source


@pytest.mark.parametrize("half", [half for half in TABLE if TABLE[half]])
def test_explain_is_mostly_right_and_rarely_wrong(half: str) -> None:
    verdicts = {source: verdict(*row) for source, row in TABLE[half].items()}
    count = Counter(verdicts.values())
    bad = {source: found for source, found in verdicts.items() if found != "right"}
    assert count["right"] >= 0.90 * len(verdicts), bad
    assert count["wrong"] <= 0.02 * len(verdicts), bad
