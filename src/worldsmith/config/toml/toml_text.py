"""TOML text to plain data, with the source position of every key and value.

The standard library parses the text but reports no positions, so a scanner finds them in the text after it is known to
be valid.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.text_file import check_extent
from worldsmith.config.tree.paths import Path

_KEY = re.compile(r"""[ \t]*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))[ \t]*""")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+' r"|'''.*?'''+" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\r\n]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}

_OTHER_LANGUAGES = {"true": "true", "false": "false", "yes": "true", "no": "false", "none": '"???"', "null": '"???"'}
"""Constants of other languages in lower case -> how to write them in TOML."""


@dataclass(frozen=True, slots=True)
class Span:
    """Source positions of a `key` and of its `value`; for a table, both are the position of the key."""

    key: Place
    value: Place


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parses TOML text with `tomllib`.

    Args:
        text: TOML.
        file: File name for messages.

    Raises:
        ConfigError: If the text is not valid, with the position.
    """
    check_extent(text, file)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        message, place, hint = str(error), Place(file), None
        if match := re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message):
            lines = text.split("\n")
            line = int(match[1]) if match[1] else len(lines)
            column = int(match[2]) if match[2] else len(lines[-1]) + 1
            place = Place(file, line, column, 1, lines[line - 1] if line <= len(lines) else None)
            message = message[: match.start()]
            word = re.match(r"\w*", (place.source or "")[column - 1 :])
            if word and (meant := _OTHER_LANGUAGES.get(word[0].lower())):
                hint = f"write {meant}"
        raise ConfigError([Problem("", f"not valid TOML: {message}", hint=hint, place=place)]) from None


def find_positions(text: str, file: str) -> dict[Path, Span]:
    """Returns path → source position for every key, table header and list item of a valid TOML text."""
    return _Scanner(text, file).scan()


class _Scanner:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.spans: dict[Path, Span] = {}
        self.position = 0
        self.counts: dict[Path, int] = {}

    def scan(self) -> dict[Path, Span]:
        table: Path = ()
        while True:
            self.skip_gap()
            if self.position >= len(self.text):
                return self.spans
            if self.text[self.position] == "[":
                table = self.header()
            else:
                self.pair(table)

    def header(self) -> Path:
        start = self.position
        array = self.text.startswith("[[", start)
        self.position += 2 if array else 1
        names, begin, end = self.key()
        self.position += 2 if array else 1
        path: Path = ()
        for index, name in enumerate(names):
            path = (*path, name)
            if index < len(names) - 1 and path in self.counts:
                path = (*path, self.counts[path] - 1)  # a table inside the newest item of an array of tables
        place = self.place(begin, end)
        if array:
            self.spans.setdefault(path, Span(place, place))
            self.counts[path] = self.counts.get(path, 0) + 1
            path = (*path, self.counts[path] - 1)
        self.remember(path, place, place)
        return path

    def pair(self, table: Path) -> None:
        names, begin, end = self.key()
        self.position += 1  # the equals sign
        self.skip_spaces()
        value = self.position
        path = (*table, *names)
        self.scan_value(path)
        stop = min(self.position, self.line_end(value))
        self.remember(path, self.place(begin, end), self.place(value, stop))

    def remember(self, path: Path, key: Place, value: Place) -> None:
        for length in range(1, len(path)):
            self.spans.setdefault(path[:length], Span(key, key))  # tables that dotted keys imply
        self.spans[path] = Span(key, value)

    def scan_value(self, path: Path) -> None:
        letter = self.text[self.position : self.position + 1]
        if letter == "[":
            self.items(path)
        elif letter == "{":
            self.inline_table(path)
        elif match := _STRING.match(self.text, self.position):
            self.position = match.end()
        else:
            self.position += len((_SCALAR.match(self.text, self.position) or [""])[0].rstrip()) or 1

    def items(self, path: Path) -> None:
        self.position += 1
        index = 0
        while True:
            self.skip_gap()
            if self.closes("]"):
                return
            start = self.position
            self.scan_value((*path, index))
            place = self.place(start, min(self.position, self.line_end(start)))
            self.spans[(*path, index)] = Span(place, place)
            index += 1

    def inline_table(self, path: Path) -> None:
        self.position += 1
        while True:
            self.skip_gap()
            if self.closes("}"):
                return
            self.pair(path)

    def closes(self, bracket: str) -> bool:
        """Skips a comma, if one comes next, and then `bracket`, if it comes next.

        Returns True if `bracket` was skipped or the text ends, so that the list or inline table has ended.
        """
        if self.text.startswith(",", self.position):
            self.position += 1
            self.skip_gap()
        if self.position >= len(self.text):
            return True
        if self.text[self.position] == bracket:
            self.position += 1
            return True
        return False

    def key(self) -> tuple[list[str], int, int]:
        """Parses a dotted key at the current position.

        Returns (names, start, end): the character offsets of the key in the text, with `end` after its last character.
        """
        names: list[str] = []
        begin = end = self.position
        while match := _KEY.match(self.text, self.position):
            double, single, bare = match.groups()
            names.append(_unescape(double) if double is not None else single if single is not None else bare)
            raw = match.group()
            if len(names) == 1:
                begin = self.position + len(raw) - len(raw.lstrip())
            self.position = match.end()
            end = match.start() + len(raw.rstrip())
            if not self.text.startswith(".", self.position):
                break
            self.position += 1
        return names, begin, end

    def skip_gap(self) -> None:
        match = _GAP.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def skip_spaces(self) -> None:
        while self.text[self.position : self.position + 1] in (" ", "\t"):
            self.position += 1

    def line_end(self, offset: int) -> int:
        return self.starts[bisect_right(self.starts, offset)] - 1

    def place(self, begin: int, end: int) -> Place:
        line = bisect_right(self.starts, begin) - 1
        source = self.lines[line] if line < len(self.lines) else ""
        return Place(self.file, line + 1, begin - self.starts[line] + 1, max(1, end - begin), source)


def _unescape(text: str) -> str:
    def letter(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])

    return _ESCAPE.sub(letter, text)
