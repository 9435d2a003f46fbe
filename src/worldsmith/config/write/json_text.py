"""Strict JSON text to plain data with source positions, and back: no NaN, no infinity, no repeated keys."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.text_file import check_extent
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree.paths import Path
from worldsmith.config.write.values import JSON, escape_odd, write
from worldsmith.config.yaml.yaml_text import Document, read_yaml
from worldsmith.files.json_file import object_of

_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def dump_json(data: Any) -> str:
    """Formats plain data as indented JSON.

    Raises:
        ValueError: For a value that JSON does not support.
    """
    write(data, JSON)
    return escape_odd(json.dumps(data, indent=2, ensure_ascii=False)) + "\n"


def read_json(text: str, file: str) -> Document:
    """Parses JSON text.

    Args:
        text: JSON.
        file: File name for messages.

    Raises:
        ConfigError: If the text is not valid JSON or repeats a key.
    """
    check_extent(text, file)
    problems: list[Problem] = []

    def repeated(_: dict[str, Any], key: str) -> None:
        problems.append(Problem("", f"the key '{key}' occurs twice", place=Place(file)))

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not a JSON number")

    try:
        data = json.loads(text, object_pairs_hook=partial(object_of, repeated=repeated), parse_constant=refuse)
        text.encode()
        json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        lines = text.split("\n")
        source = lines[error.lineno - 1] if error.lineno <= len(lines) else None
        place = Place(file, error.lineno, error.colno, 1, source)
        raise ConfigError([Problem("", f"not valid JSON: {error.msg}", place=place)]) from None
    except UnicodeEncodeError:
        message = "the text contains half of a surrogate pair, which is not a character"
        raise ConfigError([Problem("", message, place=Place(file))]) from None
    except ValueError as error:
        raise ConfigError([Problem("", f"not valid JSON: {error}", place=Place(file))]) from None
    if problems:
        raise ConfigError(problems)
    return Document(data, _spans(text, file))


def _spans(text: str, file: str) -> dict[Path, Span]:
    """Returns the source positions of JSON text, found by parsing it as YAML; empty if that fails."""
    text = _PAIR.sub(lambda match: "x" * len(match[0]), text.replace("\t", " "))  # YAML has no surrogate pairs
    try:
        return read_yaml(text, file).spans
    except ConfigError:
        return {}
