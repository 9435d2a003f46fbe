"""What counts as a gap in each mode, and of which kind it is."""

from __future__ import annotations

from typing import Any

import pytest

from worldsmith.tools.gaps.evaluation_results import Gap, Mode, find_gap

NONE = object()
RIGHT = "right"
CASES: list[tuple[Any, Any, str, str, str, str]] = [
    # said, true, and what it is: exact, normalized, yes_no, letter ("-": the true answer cannot be read so)
    ("yes", "yes", RIGHT, RIGHT, RIGHT, "-"),
    (" YES ", "yes", RIGHT, RIGHT, RIGHT, "-"),
    ("Yes.", "yes", "format", RIGHT, RIGHT, "-"),
    ("Yes, the ball falls.", "Yes", "format", "format", RIGHT, "-"),
    ("no", "yes", "FN", "FN", "FN", "-"),
    ("Yes!", "no", "FP", "FP", "FP", "-"),
    ("yes or no", "no", "unparsed", "unparsed", "unparsed", "-"),
    ("", "no", "unparsed", "unparsed", "unparsed", "-"),
    (None, "no", "missing", "missing", "missing", "missing"),
    (NONE, "no", "missing", "missing", "missing", "missing"),
    ("B", "b", RIGHT, RIGHT, "-", RIGHT),
    ("(B)", "B", "format", RIGHT, "-", RIGHT),
    ("B) the red one", "B", "format", "format", "-", RIGHT),
    ("A.", "A", "format", RIGHT, "-", RIGHT),
    ("C", "B", "wrong", "wrong", "-", "wrong"),
    ("the red one", "B", "unparsed", "unparsed", "-", "unparsed"),
    ("A red square.", "red square", "format", RIGHT, "-", "-"),
    ("a blue square", "red square", "wrong", "wrong", "-", "-"),
    ("", "", RIGHT, RIGHT, "-", "-"),
    (NONE, "", "missing", "missing", "missing", "missing"),
    (3, "3", RIGHT, RIGHT, "-", "-"),
    (None, None, "missing", "missing", "missing", "missing"),
]


@pytest.mark.parametrize("mode", ["exact", "normalized", "yes_no", "letter"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case).replace(str(NONE), "left out"))
def test_a_gap_and_its_kind(case: tuple[Any, ...], mode: Mode) -> None:
    said, true, *kinds = case
    row = {"gt": true} if said is NONE else {"response": said, "gt": true}
    wanted = kinds[["exact", "normalized", "yes_no", "letter"].index(mode)]
    if wanted == "-":
        with pytest.raises(ValueError, match=f"cannot be parsed as {mode}"):
            find_gap(row, mode)
        return
    gap = find_gap(row, mode)
    assert (RIGHT if gap is None else gap.error_type) == wanted


def test_what_was_compared() -> None:
    row = {"response": "It is B.", "gt": "a"}
    assert find_gap(row, "exact") == Gap("unparsed", "it is b.")
    assert find_gap({"response": "The answer is: B", "gt": "a"}, "letter") == Gap("wrong", "B")
    assert find_gap({"response": "maybe", "gt": "no"}, "yes_no") == Gap("unparsed", None)


@pytest.mark.parametrize("status", ["prep_error", "gen_error"])
def test_a_record_that_was_not_answered_is_missing(status: str) -> None:
    assert find_gap({"response": "", "gt": "", "status": status}, "exact") == Gap("missing", None)
    assert find_gap({"response": "", "gt": "", "status": "ok"}, "exact") is None
