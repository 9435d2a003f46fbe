"""Text for the terminal: untrusted text can neither control the terminal nor flood it.

In a terminal, lines are wrapped at its width. Files and pipes get the lines unchanged.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TextIO

from worldsmith.config.write.values import escape_controls, limit_message

WIDTH = 100
"""Max columns of text that is written in paragraphs."""
NARROWEST = 20
"""Columns of the narrowest terminal for which lines are wrapped."""
NARROW = 4
"""Indentation of a word that does not fit its column."""
_LABEL = re.compile(r"(?P<indent>[\s│├└─]*)\S.{0,24}?\s{2,}(?=\S)|(?P<plain>[\s│├└─]*)")
"""Matches the first column of a line (a label and at least two spaces), or the indentation of a line without one."""
_NOT_WRAPPED = re.compile(r"\s*\d*\s\|(\s|$)|(next:)?\s*worldsmith \w")
"""Matches lines that are never wrapped: source lines in an error, the markers below them, and commands."""


def terminal_width(stream: TextIO) -> int | None:
    """Returns the columns of the terminal that `stream` writes to; None for a file or pipe."""
    with suppress(OSError, ValueError, AttributeError):
        if stream.isatty():
            return max(NARROWEST, _stated_width() or os.get_terminal_size(stream.fileno()).columns)
    return None


def _stated_width() -> int | None:
    """Returns the value of the variable COLUMNS; None if it is not set or not a positive number."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) or None if columns.isdecimal() and len(columns) < 6 else None


def text_width() -> int:
    """Returns the width of paragraphs on standard output in characters: that of the terminal, at most `WIDTH`."""
    return max(NARROWEST, min(WIDTH, terminal_width(sys.stdout) or _stated_width() or WIDTH))


def fit_width(text: str, width: int | None) -> str:
    """Returns the text with lines wrapped between words at `width` characters; None: returns the text unchanged.

    In a line of a label, at least two spaces and a text, the continuation lines are indented to the column in which the
    text begins, if that column is in the left half. Long words, source lines and commands are not broken. A word that
    does not fit after this indentation is indented by `NARROW` characters, or not at all.
    """
    if width is None:
        return text
    lines: list[str] = []
    # Whether the line belongs to a command of several lines: a break in a quoted word would change it.
    continues = False
    for line in text.split("\n"):
        lines += [line] if continues else _wrap(line, width)
        continues = line.endswith("\\") and (continues or _NOT_WRAPPED.match(line) is not None)
    return "\n".join(lines)


def _wrap(line: str, width: int) -> list[str]:
    if len(line) <= width or _NOT_WRAPPED.match(line):
        return [line]
    found = _LABEL.match(line)
    assert found is not None  # the second form matches everything
    hanging = found.end() if found["plain"] is None else len(found["plain"]) + 4
    if hanging > width // 2:
        hanging = len(found["indent"] or found["plain"] or "") + 4
    hanging = min(hanging, width // 2)
    wrapped = textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * hanging,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [_fit_word(part.rstrip(), width) for part in wrapped] or [line]


def _fit_word(line: str, width: int) -> str:
    """Returns `line`; if it is longer than `width` characters, with the indentation reduced to `NARROW` or 0."""
    word = line.strip()
    if len(line) <= width or len(line) - len(word) <= NARROW:
        return line
    return " " * NARROW * (len(word) + NARROW <= width) + word


def fitting_columns(widths: Sequence[int], max_width: int) -> list[list[int]]:
    """Splits the columns of a table into groups that fit into a number of characters.

    Args:
        widths: Width of each column.
        max_width: Max characters of a group, with two spaces per column.

    Returns:
        Column indexes of each group.
    """
    parts: list[list[int]] = [[]]
    for column, width in enumerate(widths):
        if parts[-1] and sum(widths[known] + 2 for known in parts[-1]) + width + 2 > max_width:
            parts.append([])
        parts[-1].append(column)
    return parts


def wrap_words(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Wraps text at spaces only; `first` is the indentation of the first line, `rest` that of the others."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def table_lines(
    rows: Sequence[Sequence[str]], width: int | None, align: Callable[[str, int], str] = str.ljust
) -> Iterator[str]:
    """Yields the lines of a table, in several parts with a blank line between them if it is wider than the terminal.

    Args:
        rows: Cells of each row; the first one is repeated in each part.
        width: Max width of a line; None: no limit.
        align: Function that pads all cells but the first to the width of their column.
    """
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts = [range(len(widths))] if width is None else fitting_columns(widths, width - first)
    for number, part in enumerate(parts):
        if number:
            yield ""
        for title, *cells in rows:
            yield "  ".join([title.ljust(first), *(align(cells[column], widths[column]) for column in part)]).rstrip()


def print_text(text: str) -> None:
    """Prints a result on standard output, wrapped and with escaped control characters."""
    print(fit_width(escape_controls(text), terminal_width(sys.stdout)), flush=True)


def print_message(text: str) -> None:
    """Prints an error or a note on standard error, wrapped, shortened and with escaped control characters."""
    print(fit_width(escape_controls(limit_message(text)), terminal_width(sys.stderr)), file=sys.stderr, flush=True)


def print_warning(text: str) -> None:
    """Prints "warning: " and the text on standard error, wrapped, shortened and with escaped control characters."""
    print_message(f"warning: {text}")


class TerminalFormatter(logging.Formatter):
    """Formats log records and tracebacks for the terminal: wrapped, shortened, with escaped control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return fit_width(escape_controls(limit_message(super().format(record))), terminal_width(sys.stderr))


def format_last_resort() -> None:
    """Sets the formatter of `logging.lastResort`, which prints records without a handler."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TerminalFormatter("%(message)s"))


def terminal_handler() -> logging.Handler:
    """Returns a log handler that writes messages to standard error, formatted by `TerminalFormatter`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter("%(message)s"))
    return handler


def command_lines(words: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a shell command, indented and broken so that they fit the terminal and can be pasted.

    Args:
        words: Program and arguments, not quoted.
    """
    lines, line = [], ""
    for word in map(shlex.quote, words):
        if line and len(line) + len(word) > text_width() - 8:
            lines.append(line)
            line = ""
        line += f" {word}" if line else word
    lines.append(line)
    yield from ("    " + text for text in " \\\n  ".join(lines).split("\n"))
