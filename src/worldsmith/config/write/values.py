"""Writes plain data as text: in TOML, JSON or Python, as an override, and in messages."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Time = datetime.datetime | datetime.date | datetime.time

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_LOOKALIKES = {"true", "false", "null", "inf", "nan"}
_TOML_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_WORD_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Matches control characters (C0, C1), line separators, and characters that change the direction of text."""
LONGEST, LONGEST_LINE = 200, 2000
"""Max characters of a value and of a line in a message."""
LONGEST_NUMBER = 14_000
"""Max bit length of an integer that is written; Python refuses to convert longer ones to decimal digits."""
_LONG_VALUE = re.compile(rf"[^\s/]{{{LONGEST + 1},}}")
"""Matches a long value without spaces or slashes, so that paths are not shortened."""
_LONG_LINE = re.compile(rf"[^\n]{{{LONGEST_LINE + 1},}}")
_LONG_NUMBER = re.compile(
    r"Exceeds the limit \((?P<limit>\d+) digits\) for integer string conversion"
    r"(?:: value has (?P<found>\d+) digits)?(?:; use sys\.set_int_max_str_digits\(\) to increase the limit)?"
)
_ODD_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Matches characters that JSON readers may misinterpret; they are written as escapes."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """Notation of values in a file format; `null`, `odd_number` or `time` is None if the format has no such values.

    Attributes:
        name: Name of the format, for messages.
        text: Writes a string.
        key: Writes the key of a table.
        null: Notation of None.
        truth: Notation of False and True.
        time: Writes a date or time.
        comma: Separator of items.
        pair: Separator of key and value.
        braces: Brackets of a table.
    """

    name: str
    text: Callable[[str], str]
    key: Callable[[str], str]
    item: Callable[[str], str] | None = None
    """Writes a string inside a list or table; None: strings there are written by `text` too."""
    null: str | None = "null"
    truth: tuple[str, str] = ("false", "true")
    odd_number: Callable[[float], str] | None = repr
    """Writes infinity or NaN."""
    time: Callable[[Time], str] | None = None
    comma: str = ", "
    pair: str = ": "
    braces: tuple[str, str] = ("{", "}")


def write(value: Any, syntax: Syntax, *, inside: bool = False) -> str:
    """Formats plain data on one line.

    Args:
        value: Plain data.
        syntax: Notation of the format, such as `TOML`.
        inside: Whether the value is inside a list or table, where strings can have another notation.

    Raises:
        ValueError: If the format cannot express the value.
    """
    if isinstance(value, str):
        return (syntax.item or syntax.text)(value) if inside else syntax.text(value)
    if isinstance(value, bool):
        return syntax.truth[value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        if syntax.odd_number is not None:
            return syntax.odd_number(value)
    elif isinstance(value, (int, float)):
        if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
            raise ValueError(f"{syntax.name} cannot express an integer of {value.bit_length()} bits")
        return repr(value)
    elif isinstance(value, list):
        return f"[{syntax.comma.join(write(item, syntax, inside=True) for item in value)}]"
    elif isinstance(value, dict):
        pairs = [f"{syntax.key(key)}{syntax.pair}{write(item, syntax, inside=True)}" for key, item in value.items()]
        return syntax.comma.join(pairs).join(syntax.braces) if pairs else "{}"
    elif value is None and syntax.null is not None:
        return syntax.null
    elif isinstance(value, Time) and syntax.time is not None:
        return syntax.time(value)
    kind = "null" if value is None else str(value) if isinstance(value, float) else f"a {type(value).__name__}"
    raise ValueError(f"{syntax.name} cannot express {kind}")


def write_toml(table: dict[str, Any]) -> str:
    """Formats a table as the text of a TOML file: single values first, then a section per sub-table.

    Raises:
        ValueError: For a value that TOML cannot express, such as null.
    """
    blocks: list[str] = []
    _write_table(table, (), blocks)
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def toml_pair(key: str, value: Any) -> str:
    """Formats a TOML line `key = value`."""
    return f"{TOML.key(key)} = {write(value, TOML)}"


def python_text(text: str) -> str:
    """Returns a string as a Python string literal in double quotes."""
    body = repr(text)
    return body if body[0] == '"' else '"' + body[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'


def _write_table(table: dict[str, Any], path: tuple[str, ...], blocks: list[str]) -> None:
    lines = [toml_pair(key, item) for key, item in table.items() if not isinstance(item, dict)]
    if path and (lines or not table):
        lines.insert(0, f"[{'.'.join(map(TOML.key, path))}]")
    if lines:
        blocks.append("\n".join(lines))
    for key, item in table.items():
        if isinstance(item, dict):
            _write_table(item, (*path, key), blocks)


def _toml_text(text: str) -> str:
    """Returns a basic TOML string; non-printable characters are escaped."""
    return f'"{"".join(map(_toml_letter, _require_encodable(text)))}"'


def _toml_letter(letter: str) -> str:
    if letter in _TOML_ESCAPES or letter.isprintable():
        return _TOML_ESCAPES.get(letter, letter)
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_text(key)


def _json_text(text: str) -> str:
    return escape_odd(json.dumps(_require_encodable(text), ensure_ascii=False))


def printable(text: str) -> str:
    """Replaces non-printable characters, including line feeds, by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def escape_controls(text: str, *, lines: bool = True) -> str:
    """Escapes control and bidirectional formatting characters of untrusted text, as in JSON, for a terminal.

    Args:
        text: Untrusted text.
        lines: Whether line feeds and tabs stay unescaped.
    """
    return _CONTROLS.sub(lambda match: match[0] if lines and match[0] in "\n\t" else f"\\u{ord(match[0]):04x}", text)


def limit_message(text: str) -> str:
    """Shortens long values and lines of a message, and replaces Python's error about long integers by a short text."""
    text = _LONG_NUMBER.sub(
        lambda match: (
            f"expected integers of at most {match['limit']} digits, found "
            f"{'one of ' + match['found'] + ' digits' if match['found'] else 'a longer one'}"
        ),
        text,
    )
    text = _LONG_VALUE.sub(lambda match: shorten(match[0]), text)
    return _LONG_LINE.sub(lambda match: shorten(match[0], LONGEST_LINE), text)


def shorten(text: str, limit: int = LONGEST) -> str:
    """Cuts text after `limit` characters and appends its full length; shorter text is returned unchanged."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def escape_odd(text: str) -> str:
    """Writes control characters, line separators, byte order marks and noncharacters of JSON text as escapes."""
    return _ODD_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _require_encodable(text: str) -> str:
    """Returns the text unchanged; raises ValueError if it contains an unpaired surrogate, which UTF-8 cannot encode."""
    if half := next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None):
        raise ValueError(f"half of a surrogate pair (U+{ord(half):04X}) is not a character")
    return text


def _word_text(text: str) -> str:
    return text if _BARE_WORD.fullmatch(text) and text.lower() not in _LOOKALIKES else _quoted(text)


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"a command line cannot contain the NUL character of {text!r}")
    return f"'{''.join(_WORD_ESCAPES.get(letter, letter) for letter in text)}'"


TOML = Syntax(
    "TOML", _toml_text, _toml_key, null=None, time=lambda time: time.isoformat(), pair=" = ", braces=("{ ", " }")
)
JSON = Syntax("JSON", _json_text, _json_text, odd_number=None)
PYTHON = Syntax(
    "Python",
    python_text,
    python_text,
    null="None",
    truth=("False", "True"),
    odd_number=lambda number: f'float("{number!r}")',
    time=repr,
)
YAML = Syntax("YAML", text=str, key=str)
"""Used only to check which values YAML can express; the YAML library writes the text."""
WORD = Syntax("an override word", _word_text, _quoted, comma=",", pair=":")
"""Override values whose parsed result does not depend on the type of the field."""
LAUNCH_WORD = Syntax(
    "an override word",
    text=lambda text: f"'{text}'" if "," in text or " " in text else text,
    item=lambda text: f"'{text}'",
    key=str,
    time=str,
    comma=",",
    pair=":",
)
"""Notation of overrides in messages and launch scripts: strings are quoted in lists, elsewhere only with a comma or
space."""
SHOWN = replace(
    JSON,
    text=lambda text: json.dumps(text, ensure_ascii=False),
    key=lambda key: json.dumps(key, ensure_ascii=False),
    odd_number=repr,
    time=lambda time: f'"{time}"',
)
"""Notation of values in messages: JSON, extended to values that JSON cannot express."""
