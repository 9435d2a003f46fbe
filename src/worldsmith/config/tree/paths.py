"""Paths of values in a config: ``optimizer.betas[0]``, ``optimizer.lr_multipliers."a.b"``."""

from __future__ import annotations

import re
from typing import Any

Path = tuple[str | int, ...]

_BARE = re.compile(r"[^\s.\[\]\"'=:{}$,]+")
_SEGMENT = re.compile(r"""\.?(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s.\[\]"'=:{}$,]+))|\[([0-9]+)\]""")


def format_path(path: Path) -> str:
    """Formats a path as text, which `parse_path` reads. Names with dots or other special characters are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        if not _BARE.fullmatch(part):
            part = '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text += f".{part}" if text else part
    return text


def parse_path(text: str) -> Path:
    """Parses a path such as ``a.b[0]."c.d"`` into keys and list indexes: ``("a", "b", 0, "c.d")``.

    Raises:
        ValueError: If the text is not a path.
    """
    path: list[str | int] = []
    position = 0
    while position < len(text):
        match = _SEGMENT.match(text, position)
        starts_with_dot = text[position] == "."
        # A dot stands between two names, never in front of the first one.
        if match is None or (match[4] is None and starts_with_dot != bool(path)):
            raise ValueError(f"'{text}' is not a path: expected a name at character {position + 1}")
        double, single, bare, index = match.groups()
        if double is not None:
            path.append(re.sub(r"\\(.)", r"\1", double))
        elif index is not None:
            path.append(int(index))
        else:
            path.append(single if single is not None else bare)
        position = match.end()
    if not path:
        raise ValueError("a path must not be empty")
    return tuple(path)


def starts_with(path: Path, prefix: Path) -> bool:
    """Returns whether `path` is `prefix` or lies below it."""
    return path[: len(prefix)] == prefix


def forget_places(places: dict[Path, Any], path: Path) -> None:
    """Removes the source positions of a value and of all values below it from `places`."""
    for known in [known for known in places if starts_with(known, path)]:
        del places[known]


def flatten(table: dict[str, Any], prefix: Path = ()) -> list[tuple[Path, Any]]:
    """Returns (path, value) of the leaves of nested dicts, in order. An empty dict is a leaf.

    Args:
        table: Nested dicts.
        prefix: Path of `table`, the beginning of all paths.
    """
    leaves: list[tuple[Path, Any]] = []
    for key, value in table.items():
        here = (*prefix, key)
        if isinstance(value, dict) and value:
            leaves.extend(flatten(value, here))
        else:
            leaves.append((here, value))
    return leaves
