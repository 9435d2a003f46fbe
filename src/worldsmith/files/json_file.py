"""JSON files that lie next to weights: configs, indexes, manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsmith.files.errors import UserError
from worldsmith.files.lines import require_regular

LARGEST = 3.4e38
"""Max absolute value that float32 can represent."""
KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def read_json_object(file: Path) -> dict[str, Any]:
    """Returns the object that a file holds. Raises UserError, with the file and the place in it, for anything else."""
    require_regular(file)
    try:
        data = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, a number with too many digits, too deep
        raise UserError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{file}: expected an object, found {json_type(data)}")
    return data


def read_optional_json(file: Path) -> dict[str, Any]:
    """Returns the object that a file holds; empty if there is no such file.

    Raises UserError as `read_json_object` does.
    """
    return read_json_object(file) if file.is_file() else {}


def object_of(pairs: Sequence[tuple[str, Any]], repeated: Callable[[dict[str, Any], str], None]) -> dict[str, Any]:
    """Returns an `object_pairs_hook` of `json.loads`; calls `repeated` with the object and each key that is given
    again.

    Python's reader takes the last of the values without a word.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                repeated(found, key)
            seen.add(key)
    return found


def section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the object under a key; empty without one. Raises ValueError for a value of another kind."""
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object, found {json_type(value)}")
    return value


def are_numbers(values: Any, *, above: float = -LARGEST) -> bool:
    """Returns whether a value is a list of numbers that float32 can hold, all greater than `above`."""
    return isinstance(values, list) and all(type(value) in (int, float) and above < value < LARGEST for value in values)


def json_type(value: Any) -> str:
    return KINDS.get(type(value), "nothing")
