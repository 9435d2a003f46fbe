"""Memory and files that others have published of their programs, against ours set up as theirs: 20 %, or said why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from published_memory import FIGURES  # noqa: E402 (a script's folder)

TABLE = (ROOT / "docs/planning_accuracy.md").read_text().partition("|---")[2].partition("\n\n")[0].splitlines()[1:]
SIMULATED = [place for place, figure in enumerate(FIGURES) if not figure.quick]
QUICK = [place for place, figure in enumerate(FIGURES) if figure.quick]


@pytest.mark.parametrize("place", range(len(FIGURES)))
def test_the_table_has_the_figure_and_the_reason_for_a_difference(place: int) -> None:
    figure, line = FIGURES[place], TABLE[place]
    columns = line.split("|")
    predicted = float(columns[4])
    assert figure.row(predicted).split("|")[:5] == columns[:5]
    assert figure.row(predicted).split("|")[6:] == columns[6:]
    assert figure.agrees(predicted) or len(figure.explanation) > 40
    assert len(TABLE) == len(FIGURES)


@pytest.mark.parametrize("place", QUICK)
def test_arithmetic_gives_what_the_table_has(place: int) -> None:
    assert FIGURES[place].row(FIGURES[place].predict() / 1e9) == TABLE[place]


@pytest.mark.slow
@pytest.mark.parametrize("place", SIMULATED)
def test_simulated_steps_give_what_the_table_has(place: int) -> None:
    assert FIGURES[place].row(FIGURES[place].predict() / 1e9) == TABLE[place]
