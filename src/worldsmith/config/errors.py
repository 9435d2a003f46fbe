"""Mistakes of the user, all of them at once, each with its place and the way out."""

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
"""Max number of mistakes that are shown with suggestions; the others are counted."""
LONGEST = 120
"""Max characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position in a source file: 1-based `line` and `column`; `source` is the text of the line."""

    file: str
    line: int | None = None
    column: int | None = None
    length: int = 1
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the path of the value, what is wrong, what was expected and found, and what to do.

    `concerns` are the paths of the values that the message is about, where `path` is that of their section.
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
        """The path as keys; of the whole tree there are none."""
        return parse_path(self.path) if self.path else ()

    @property
    def file(self) -> str | None:
        return self.place.file if self.place else None

    @property
    def line(self) -> int | None:
        return self.place.line if self.place else None

    @property
    def column(self) -> int | None:
        return self.place.column if self.place else None

    def at(self, place: Place | None) -> Problem:
        """Returns the problem with a source position, unless it already has one."""
        return self if place is None or self.place is not None else replace(self, place=place)

    def render(self) -> str:
        """Returns the lines that the user reads: place, path and message, the source line with a caret, the advice."""
        place, lines = self.place, []
        where = ""
        if place:
            position = () if place.line is None else (place.line, place.column or 1)
            where = ":".join(str(part) for part in (place.file, *position)) + ": "
        message = self.message
        if self.expected is not None and self.found is not None:
            message += f"{': ' if message else ''}expected {self.expected}, found {self.found}"
        elif self.expected is not None:
            message += f"{': ' if message else ''}expected {self.expected}"
        lines.append(f"{where}{self.path + ': ' if self.path else ''}{message}")
        if place and place.source is not None:
            lines += _caret(place)
        if self.hint:
            lines.append(f"    -> {self.hint}")
        return "\n".join(lines)


class WrongValueError(ValueError):
    """Raised by a section's `check()`: invalid values, the reason or the allowed values, and the fix.

    `found` maps paths from the section (``lr``, ``caps.size``, ``betas[1]``) to the invalid values.
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
        """Changes the names, in place, to paths from the config that holds the section; the message names it once."""
        self.names = tuple(f"{section}.{name}" for name in self.names)
        self.message = f"{section}: {self.message}"
        self.args = (f"{section}: {self}",)
        return self


def wrong(section: Any, *names: str, allowed: str = "", why: str = "", remedy: str = "") -> WrongValueError:
    """Returns the error that says what is wrong with values of a section; what they are is read from it."""
    found = {}
    for name in names:
        node: Any = section
        for part in parse_path(name):
            node = getattr(node, str(part)) if hasattr(node, str(part)) else node[part]
        found[name] = node
    return WrongValueError(found, allowed=allowed, why=why, remedy=remedy)


class ConfigError(UserError, ValueError):
    """A config that cannot be used. `problems` lists every mistake that was found.

    `rest` is the resolved tree apart from its mistakes, and `places` says where its values stand, if it got so far.
    `where` says what holds the mistakes.
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
        count = len(self.problems)
        title = f"{count} mistake{'s' * (count != 1)} in {self.where}"
        more = [f"and {count - SHOWN} more; fix these first"] if count > SHOWN else []
        return "\n\n".join([title, *(problem.render() for problem in self.problems[:SHOWN]), *more])


def locate(problems: Iterable[Problem], places: Mapping[Path, Place]) -> list[Problem]:
    """Adds the place of each problem: of a value that it is about, of its path, the nearest above, or one below."""
    return [problem if problem.place else problem.at(_place_of(problem, places)) for problem in problems]


def _place_of(problem: Problem, places: Mapping[Path, Place]) -> Place | None:
    for path in map(parse_path, problem.concerns):
        if path in places:
            return places[path]
    return find_place(problem.path, places)


def find_place(path: str, places: Mapping[Path, Place]) -> Place | None:
    try:
        parts = parse_path(path)
    except ValueError:
        return None
    for length in range(len(parts), 0, -1):
        if parts[:length] in places:
            return places[parts[:length]]
    return next((place for known, place in places.items() if starts_with(known, parts)), None)


def blamed_line(error: BaseException) -> Place | None:
    """Returns the line of a recipe's or a component's own code that an error comes from: the last one that is not
    ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return Place(error.filename, error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__))]
    if not own:
        return None
    line = own[-1].line or ""  # without its indentation
    return Place(own[-1].filename, own[-1].lineno, 1, len(line), line or None)


def raise_interrupt(error: BaseException) -> None:
    """Raises `error` again if it is Ctrl-C. Any other error of a user's code is a mistake in that code, a SystemExit or
    an own subclass of KeyboardInterrupt included."""
    if type(error) is KeyboardInterrupt:
        raise error


def describe_error(error: BaseException) -> str:
    """Formats an exception as one line: its class, and its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def code_problem(what: str, error: BaseException, path: str = "") -> Problem:
    """Converts an exception in a user's code into a problem with its source line, instead of a traceback."""
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
    """Returns the source line and a caret under the place; long lines are cut to a window around it."""
    source = values.printable((place.source or "").rstrip("\r\n").replace("\t", " "))
    column = place.column or 1
    start = max(0, column - 60) if len(source) > 110 else 0
    shown = source[start : start + 110]
    gutter = str(place.line) if place.line is not None else ""
    width = max(1, min(place.length, len(shown) - (column - 1 - start)))
    return [f"  {gutter:>4} | {shown}", f"       | {' ' * (column - 1 - start)}{'^' * width}"]
