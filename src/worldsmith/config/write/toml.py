"""Plain data as TOML text that every reader of TOML takes for the same data."""

from __future__ import annotations

import datetime
import re
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def write_toml(table: dict[str, Any]) -> str:
    """A table as TOML: single values first, then a section per sub-table. Raises ValueError for null and the like."""
    blocks: list[str] = []
    _write_table(table, (), blocks)
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def toml_value(value: Any) -> str:
    """One value on one line. Raises ValueError, saying what TOML has no form for."""
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    kind = "null" if value is None else type(value).__name__
    raise ValueError(f"TOML has no form for {kind}")


def toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml_text(key)


def toml_text(text: str) -> str:
    """A basic string; whatever does not print is escaped. Raises ValueError for half a surrogate pair."""
    return f'"{"".join(map(_letter, text))}"'


def _letter(letter: str) -> str:
    if letter in _SHORT:
        return _SHORT[letter]
    if "\ud800" <= letter <= "\udfff":
        raise ValueError(f"half of a surrogate pair (U+{ord(letter):04X}) is no character")
    if letter.isprintable():
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _write_table(table: dict[str, Any], path: tuple[str, ...], blocks: list[str]) -> None:
    values = {key: item for key, item in table.items() if not isinstance(item, dict)}
    lines = [f"{toml_key(key)} = {toml_value(item)}" for key, item in values.items()]
    if path and (lines or not table):
        lines.insert(0, f"[{'.'.join(map(toml_key, path))}]")
    if lines:
        blocks.append("\n".join(lines))
    for key, item in table.items():
        if isinstance(item, dict):
            _write_table(item, (*path, key), blocks)
