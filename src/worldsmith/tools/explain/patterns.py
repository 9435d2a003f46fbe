"""The known errors, one table in patterns/*.toml: how they look in a log, what they mean, what to do."""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOWER_CASE = re.compile(r"\W*(?:[a-z_]\w*\.)*[a-z]\w*(?:error|exception): ")
"""How an error begins in lower case."""


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """One row of the table."""

    id: int
    name: str
    match: tuple[re.Pattern[str], ...]
    """A line that one of them is found in shows the error. Named groups are what `remedies` may reckon with."""
    parts: tuple[str, ...]
    """Fixed text of each expression: a line without it cannot match, and a substring search is faster."""
    means: str
    remedies: tuple[str, ...]
    """What to do, the most likely first, as templates of `explanation.render_remedy`."""
    needs: tuple[re.Pattern[str], ...] = ()
    """One of them must be found somewhere in the log too, if there are any."""
    raised_in: tuple[re.Pattern[str], ...] = ()
    """If not empty, the traceback frame that raised the error must match one of these expressions."""
    less: tuple[str, ...] = ()
    """Two named groups, if any: a line shows the error only if the first is the smaller number."""
    over: tuple[int, ...] = ()
    """Patterns that are not meant where this one is found: it says the same of less."""
    at_least: int = 1
    """So many lines must show it."""
    consequence: bool = False
    """Whether it is never the cause: something else has gone wrong before, mostly in another process."""
    fallback: bool = False
    """Whether it is said only where nothing else is known: its evidence fits several causes."""
    facts: tuple[str, ...] = ()
    """What to tell of the run, by the names of `facts.FACTS`."""

    def groups_in(self, text: str) -> Mapping[str, str] | None:
        """Named groups of the first expression that a line matches; None if the line does not show the error."""
        if is_lower_case(text):
            found = (regex.search(text) for regex in any_case(self.match))
        else:
            found = (regex.search(text) for part, regex in zip(self.parts, self.match, strict=True) if part in text)
        if match := next(filter(None, found), None):
            groups = {name: value for name, value in match.groupdict().items() if value is not None}
            return groups if self.is_less(groups) else None
        return None

    def is_raised_in(self, frame: str) -> bool:
        """Whether the frame that raised the error, empty if it is not known, is one that shows this row."""
        return not self.raised_in or any(regex.search(frame) for regex in self.raised_in)

    def is_less(self, groups: Mapping[str, str]) -> bool:
        """Whether the numbers of a line are as `less` asks."""
        numbers = [int(groups[name]) for name in self.less if name in groups]
        return len(numbers) < 2 or numbers[0] < numbers[1]


@functools.cache
def any_case(expressions: tuple[re.Pattern[str], ...]) -> tuple[re.Pattern[str], ...]:
    """The expressions, regardless of upper and lower case."""
    return tuple(re.compile(regex.pattern, re.IGNORECASE) for regex in expressions)


@functools.cache
def patterns() -> Mapping[int, ErrorPattern]:
    """All rows by number. Numbers up to 58 are errors of Cosmos-RL and TAO, those from 101 all others."""
    files = sorted((Path(__file__).parent / "patterns").glob("*.toml"))
    rows = [row for file in files for row in tomllib.loads(file.read_text(encoding="utf-8"))["pattern"]]
    return {row["id"]: read(**row) for row in rows}


GRAM = 4
"""The length of the pieces of text by which `candidates` finds rows."""


@functools.cache
def rows_by_gram() -> tuple[Mapping[str, Sequence[int]], Sequence[int]]:
    """The rows by one piece of each fixed text, the rarest one; the rows with an expression that has no such piece."""
    grams_of = {part: grams(part) for pattern in patterns().values() for part in pattern.parts}
    count = Counter(gram for of_part in grams_of.values() for gram in of_part)
    index: dict[str, list[int]] = {}
    always = []
    for id, pattern in patterns().items():
        for part in pattern.parts:
            if grams_of[part]:
                index.setdefault(min(sorted(grams_of[part]), key=count.__getitem__), []).append(id)
            else:
                always.append(id)
    return index, always


def grams(text: str) -> set[str]:
    return {text[start : start + GRAM] for start in range(len(text) - GRAM + 1)}


def candidates(text: str) -> Iterable[ErrorPattern]:
    """The rows that a line can show, in the order of the table: most of them need a text that it does not have."""
    if is_lower_case(text):
        return patterns().values()
    index, always = rows_by_gram()
    ids = set(always).union(*(index[gram] for gram in grams(text) if gram in index))
    return [pattern for id, pattern in patterns().items() if id in ids]


def is_lower_case(text: str) -> bool:
    """Whether it is an error that somebody wrote down in lower case, such as the title of a thread."""
    return LOWER_CASE.match(text) is not None and text == text.lower()


def read(*, match: Sequence[str], **row: Any) -> ErrorPattern:
    """A row of a file; its keys `with` and `try` cannot be names in Python. Raises TypeError for an unknown key."""
    row |= {"match": match, "parts": map(fixed_part, match), "remedies": row.pop("try"), "needs": row.pop("with", ())}
    for name in ("match", "needs", "raised_in"):
        row[name] = map(re.compile, row.get(name, ()))
    values: dict[str, Any] = {
        name: value if isinstance(value, int | str) else tuple(value) for name, value in row.items()
    }
    return ErrorPattern(**values)


def fixed_part(expression: str) -> str:
    """The longest text that stands in every match of a regular expression; empty if none is sure."""
    runs, depth, i = [""], 0, 0
    if "(?i" in expression:
        return ""
    while i < len(expression):
        char, i = expression[i], i + 1
        if char == "[":
            i = expression.index("]", i + 1) + 1
            runs.append("")
        elif char in "()":
            depth += 1 if char == "(" else -1
            runs.append("")
        elif char == "|" and depth == 0:
            return ""
        elif char in "?*{":
            runs[-1:] = [runs[-1][:-1], ""]
            if char == "{":
                i = expression.index("}", i) + 1
        elif char == "\\":
            char, i = expression[i], i + 1
            if char.isalnum() or depth:
                runs.append("")
            else:
                runs[-1] += char
        elif char in ".^$+" or depth:
            runs.append("")
        else:
            runs[-1] += char
    return max(runs, key=len)
