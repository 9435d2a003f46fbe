"""User mistakes in a config, reported all at once, each with its source position and a suggestion."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from worldsmith.config.tree.paths import Path, parse_path, starts_with
from worldsmith.config.write import values
from worldsmith.files.errors import UserError as UserError

SHOWN = 100
"""Max number of mistakes that a message lists with suggestions; the others are counted."""
LONGEST = 120
"""Max characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position in a source file: 1-based `line` and `column`; `source` is the text of the line.

    For a flag or an override, `file` is "flag" or "override", and `source` is the argument.
    """

    file: str
    line: int | None = None
    column: int | None = None
    length: int = 1
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a config, with a suggestion for the user.

    Attributes:
        path: Path of the value; "" for the config as a whole.
        message: What is wrong.
        expected: Description of the expected value, appended to the message.
        found: Description of the value that was found, appended to the message.
        hint: What the user should do.
        place: Source position of the value.
        concerns: If `path` is a section: paths of the values in it that the message is about, such as values that
            contradict each other.
    """

    path: str
    message: str
    expected: str | None = None
    found: str | None = None
    hint: str | None = None
    place: Place | None = None
    concerns: tuple[str, ...] = ()

    @property
    def keys(self) -> Path:
        """`path` as a tuple of keys and list indexes; empty for the root of the config."""
        return parse_path(self.path) if self.path else ()

    @property
    def file(self) -> str | None:
        """File of the source position; None without a position."""
        return self.place.file if self.place else None

    @property
    def line(self) -> int | None:
        """1-based line of the source position; None without one."""
        return self.place.line if self.place else None

    @property
    def column(self) -> int | None:
        """1-based column of the source position; None without one."""
        return self.place.column if self.place else None

    def at(self, place: Place | None) -> Problem:
        """Returns a copy of the problem with the source position `place`; unchanged if it has a position already."""
        return self if place is None or self.place is not None else replace(self, place=place)

    def render(self) -> str:
        """Formats the problem as lines: position, path and message, source line with a caret, suggestion."""
        place = self.place
        where = ""
        if place:
            position = () if place.line is None else (place.line, place.column or 1)
            where = ":".join(str(part) for part in (place.file, *position)) + ": "
        message = self.message
        if self.expected is not None:
            found = "" if self.found is None else f", found {self.found}"
            message += f"{': ' if message else ''}expected {self.expected}{found}"
        lines = [f"{where}{self.path + ': ' if self.path else ''}{message}"]
        if place and place.source is not None:
            lines += _caret(place)
        if self.hint:
            lines.append(f"    -> {self.hint}")
        return "\n".join(lines)


class WrongValueError(ValueError):
    """Raised by `check()` of a section: names the invalid values, the allowed values or the reason, and the fix.

    Args:
        found: Invalid value by path from the section, such as ``lr``, ``caps.size`` or ``betas[1]``.
        allowed: Allowed values, as the end of "must be …".
        why: Reason why the values are invalid.
        remedy: What the user should do.
    """

    def __init__(self, found: Mapping[str, Any], *, allowed: str = "", why: str = "", remedy: str = "") -> None:
        self.names, self.remedy = tuple(found), remedy
        shown = {name: _shown(value) for name, value in found.items()}
        self.message = _listed([f"{name} = {text}" for name, text in shown.items()])
        if allowed:
            self.message = f"{_listed(shown)} must be {allowed}, found {_listed(shown.values())}"
        if why:
            self.message += f"{'; ' if allowed else ': ' if shown else ''}{why}"
        super().__init__(f"{self.message}; {remedy}" if remedy else self.message)

    def within(self, section: str) -> WrongValueError:
        """Prepends a section name to all paths in place, so that they start at its parent; returns this error."""
        self.names = tuple(f"{section}.{name}" for name in self.names)
        self.message = f"{section}: {self.message}"
        self.args = (f"{section}: {self}",)
        return self


def wrong(section: Any, *names: str, allowed: str = "", why: str = "", remedy: str = "") -> WrongValueError:
    """Builds a WrongValueError for values of a section, which are read from the section.

    Args:
        section: Config section.
        *names: Paths of the invalid values from the section, such as ``lr`` or ``betas[1]``.
        allowed: Allowed values, as the end of "must be …".
        why: Reason why the values are invalid.
        remedy: What the user should do.

    Returns:
        The error, for `raise`.
    """
    found = {}
    for name in names:
        node: Any = section
        for part in parse_path(name):
            node = getattr(node, str(part)) if hasattr(node, str(part)) else node[part]
        found[name] = node
    return WrongValueError(found, allowed=allowed, why=why, remedy=remedy)


class ConfigError(UserError, ValueError):
    """A config that cannot be used. `problems` lists every mistake, in file order.

    Args:
        problems: Mistakes; duplicates are removed.
        rest: Resolved config, in which wrong values are unchanged; None if reading stopped earlier.
        places: Source position of each value by its path.
        where: Name of the config in the title of the message, "2 mistakes in …".
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        rest: Any = None,
        places: Mapping[Path, Place] | None = None,
        *,
        where: str = "the config",
    ) -> None:
        unique = dict.fromkeys(problems)  # in the order of the file, those without a place last
        self.problems = sorted(unique, key=lambda p: (p.place is None, p.file or "", p.line or 0, p.column or 0))
        self.where = where
        self.rest, self.places = rest, places or {}
        super().__init__(self.render())

    def render(self) -> str:
        """Formats the error as text: the number of mistakes, and the first `SHOWN` of them."""
        count = len(self.problems)
        title = f"{count} mistake{'s' * (count != 1)} in {self.where}"
        more = [f"and {count - SHOWN} more; fix these first"] if count > SHOWN else []
        return "\n\n".join([title, *(problem.render() for problem in self.problems[:SHOWN]), *more])


def locate(problems: Iterable[Problem], places: Mapping[Path, Place]) -> list[Problem]:
    """Adds a source position to each problem that has none.

    Args:
        problems: Mistakes.
        places: Source position of each value by its path.

    Returns:
        The problems. A new position is that of the first path in `concerns` that `places` contains. Without such a
        path, it is that of `path`, of its nearest parent or of its first child.
    """
    return [problem if problem.place else problem.at(_place_of(problem, places)) for problem in problems]


def _place_of(problem: Problem, places: Mapping[Path, Place]) -> Place | None:
    for path in map(parse_path, problem.concerns):
        if path in places:
            return places[path]
    return find_source_position(problem.path, places)


def find_source_position(path: str, places: Mapping[Path, Place]) -> Place | None:
    """Returns the source position of a config value.

    Args:
        path: Path of the value, as text.
        places: Known source positions by path.

    Returns:
        The position of the path, of its nearest parent or of its first child; None if none of them is known.
    """
    try:
        parts = parse_path(path)
    except ValueError:
        return None
    for length in range(len(parts), 0, -1):
        if parts[:length] in places:
            return places[parts[:length]]
    return next((place for known, place in places.items() if starts_with(known, parts)), None)


def blamed_line(error: BaseException) -> Place | None:
    """Returns the line of user code that caused an error: the last one in the traceback outside of `worldsmith.config`.

    For a SyntaxError it is the line with the error. The result is None if the traceback has no such line.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return Place(error.filename, error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__))]
    if not own:
        return None
    line = own[-1].line or ""  # without its indentation
    return Place(own[-1].filename, own[-1].lineno, 1, len(line), line or None)


def raise_interrupt(error: BaseException) -> None:
    """Raises `error` again if it is exactly KeyboardInterrupt (Ctrl-C).

    All other exceptions of user code count as mistakes in that code, including SystemExit and subclasses of
    KeyboardInterrupt.
    """
    if type(error) is KeyboardInterrupt:
        raise error


def describe_error(error: BaseException) -> str:
    """Formats an exception as one line: its class, and its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def code_problem(what: str, error: BaseException, path: str = "") -> Problem:
    """Converts an exception in user code into a problem with its source line, instead of a traceback.

    Args:
        what: What failed, as the beginning of the message.
        error: Exception of the user code.
        path: Path of the config value that led to the code; "": none.
    """
    return Problem(path, f"{what}: {describe_error(error)}", place=blamed_line(error))


def _listed(names: Iterable[str]) -> str:
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _shown(value: Any) -> str:
    try:
        text = values.write(value, values.SHOWN)
    except ValueError:  # it is a section, or holds some
        many = (
            f"{'a list' if isinstance(value, list) else 'a table'} of {len(value)}" if hasattr(value, "__len__") else ""
        )
        text = many or "a section"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _caret(place: Place) -> list[str]:
    """Formats a source line and, below it, a caret at the position; a long line is cut around the position."""
    source = values.printable((place.source or "").rstrip("\r\n").replace("\t", " "))
    column = place.column or 1
    start = max(0, column - 60) if len(source) > 110 else 0
    shown = source[start : start + 110]
    gutter = str(place.line) if place.line is not None else ""
    width = max(1, min(place.length, len(shown) - (column - 1 - start)))
    return [f"  {gutter:>4} | {shown}", f"       | {' ' * (column - 1 - start)}{'^' * width}"]
