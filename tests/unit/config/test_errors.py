"""The report: places found from paths, order, caret lines."""

from __future__ import annotations

from worldsmith.config import Config
from worldsmith.config.errors import ConfigError, Place, Problem, WrongValueError, find_source_position

PLACES = {
    ("optimizer",): Place("f", 3),
    ("optimizer", "betas"): Place("f", 4),
    ("model", "config", "ema", "rate"): Place("f", 9),
}


def test_a_path_has_its_own_place_else_that_of_the_section_above_else_of_a_key_below() -> None:
    def line(path: str) -> int | None:
        place = find_source_position(path, PLACES)
        return place.line if place else None

    assert [line(path) for path in ("optimizer.betas", "optimizer.betas[1]", "optimizer.x.y")] == [4, 4, 3]
    assert [line(path) for path in ("model.config", "trainer.x", "", "a..b")] == [9, None, None, None]


def test_the_report_is_in_file_order_without_repeats_and_shows_the_line_with_a_caret() -> None:
    late = Problem("b", "", "a number", "'x' (text)", "write 1", Place("f.toml", 12, 5, 3, 'b\t= "x"'))
    early = Problem("a", "is wrong", place=Place("f.toml", 2, 1, 1, "a"))
    nowhere = Problem("c", "is missing")
    assert str(ConfigError([nowhere, late, early, late])) == (
        "3 mistakes in the config\n\n"
        "f.toml:2:1: a: is wrong\n     2 | a\n       | ^\n\n"
        "f.toml:12:5: b: expected a number, found 'x' (text)\n"
        '    12 | b = "x"\n       |     ^^^\n    -> write 1\n\n'
        "c: is missing"
    )


def test_a_very_long_line_is_cut_around_the_caret() -> None:
    lines = Problem("a", "x", place=Place("f", 1, 5001, 400, "y" * 5000 + "z" * 400)).render().split("\n")
    assert max(map(len, lines)) < 130
    assert lines[1][lines[2].index("^")] == "z"
    assert lines[1][lines[2].index("^") - 1] == "y"


def test_a_wrong_section_is_named_without_its_values() -> None:
    class Section(Config):
        a: int = 1

    assert str(WrongValueError({"data": Section()}, why="nothing reads it")) == "data = a section: nothing reads it"
    assert str(WrongValueError({"data": [Section()]}, why="no")) == "data = a list of 1: no"
