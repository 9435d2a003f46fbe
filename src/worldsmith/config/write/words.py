"""Changes of a tree as override words: what stands after ``--``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.tree.access import ABSENT
from worldsmith.config.tree.difference import Change
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.plain import to_dict

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_LOOKALIKES = {"true", "false", "null", "inf", "nan"}
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}


def write_words(found: Iterable[Change]) -> list[str]:
    """One word per change. Raises ValueError for text that no command line can hold."""
    return [
        f"~{format_path(change.path)}"
        if change.new is ABSENT
        else f"{'+' if change.old is ABSENT else ''}{format_path(change.path)}={word_value(change.new)}"
        for change in found
    ]


def word_value(value: Any) -> str:
    """A value as the reader of override words takes it, whatever the type of the field is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Config):
        return word_value(to_dict(value))
    if isinstance(value, list):
        return f"[{','.join(map(word_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_quoted(key)}:{word_value(item)}' for key, item in value.items())}}}"
    return value if _PLAIN.fullmatch(value) and value.lower() not in _LOOKALIKES else _quoted(value)


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"a command line cannot hold the NUL character of {text!r}")
    return f"'{''.join(_ESCAPES.get(letter, letter) for letter in text)}'"
