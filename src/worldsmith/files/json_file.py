"""JSON files next to weights: configs, indexes and manifests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsmith.files.errors import UserError
from worldsmith.files.lines import read_bytes, require_regular
from worldsmith.files.remote import is_remote

LARGEST = 3.4e38
"""Max absolute value that float32 can represent."""
KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def read_json_object(file: Path | str) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Args:
        file: Regular file in UTF-8, or address of a remote file.

    Returns:
        The object as a dictionary.

    Raises:
        UserError: If the file is not valid JSON (with line and column) or its top level is not an object.
        OSError: If the file cannot be read, or is a pipe or a device.
    """
    if not is_remote(str(file)):
        require_regular(file)
    try:
        data = json.loads(read_bytes(file))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, a number with too many digits, too deep
        raise UserError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{file}: expected an object, found {json_type(data)}")
    return data


def read_optional_json(file: Path) -> dict[str, Any]:
    """Reads the JSON object in a file that may be missing.

    Args:
        file: File in UTF-8.

    Returns:
        The object as a dictionary; empty if `file` does not exist or is not a regular file.

    Raises:
        UserError: If the file is not valid JSON or its top level is not an object.
        OSError: If the file cannot be read.
    """
    return read_json_object(file) if file.is_file() else {}


def object_of(pairs: Sequence[tuple[str, Any]], repeated: Callable[[dict[str, Any], str], None]) -> dict[str, Any]:
    """Builds a dictionary from the pairs of a JSON object and reports repeated keys.

    For the `object_pairs_hook` of `json.loads`, which otherwise keeps the last value of a repeated key silently.

    Args:
        pairs: Keys and values in file order.
        repeated: Callback for repeated keys, called with (the dictionary, the key) once for each repetition.

    Returns:
        The dictionary, with the last value of each key.
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
    """Returns the JSON object under the key `name` of the JSON object `data`.

    Args:
        data: JSON object as a dictionary.
        name: Key.

    Returns:
        The object as a dictionary; empty if the key is missing or its value is null.

    Raises:
        ValueError: If the value is not an object.
    """
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object, found {json_type(value)}")
    return value


def are_numbers(values: Any, *, above: float = -LARGEST) -> bool:
    """Returns whether `values` is a list of numbers within the range of float32, all greater than `above`.

    Args:
        values: JSON value of any type.
        above: Exclusive lower bound.
    """
    return isinstance(values, list) and all(type(value) in (int, float) and above < value < LARGEST for value in values)


def json_type(value: Any) -> str:
    """Returns the type of a JSON value for messages, such as "an object" for a dict and "nothing" for None."""
    return KINDS.get(type(value), "nothing")
