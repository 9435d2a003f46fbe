"""The text of a recipe TOML against its schema: syntax, unknown keys, types."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from worldsmith.config.declare.value_types import fit, mismatch
from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.toml.schema import FIELDS, MISSING, REFUSED, TomlField
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.plain import OPAQUE
from worldsmith.config.tree.suggest import nearest_path

_FIELDS = {entry.path: entry for entry in FIELDS}
_SECTIONS = {entry.path[:length] for entry in FIELDS for length in range(len(entry.path))}


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """`tomllib.loads`, with ConfigError for whatever is wrong with the text."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError([Problem("", "nested too deeply", place=Place(file))]) from None
    except ValueError as error:
        message, place = str(error), Place(file)
        if match := re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message):
            lines = text.split("\n")
            line = int(match[1]) if match[1] else len(lines)
            column = int(match[2]) if match[2] else len(lines[-1]) + 1
            place = Place(file, line, column, 1, lines[line - 1] if line <= len(lines) else None)
            message = message[: match.start()]
        raise ConfigError([Problem("", f"not valid TOML: {message}", place=place)]) from None


def check_table(table: dict[str, Any], problems: list[Problem]) -> list[tuple[TomlField, Any]]:
    """The known keys of a table that are set and have the right type, in file order; the rest goes to `problems`."""
    found: list[tuple[TomlField, Any]] = []
    _check_section(table, (), problems, found)
    return found


def _check_section(
    table: dict[str, Any], path: tuple[str, ...], problems: list[Problem], found: list[tuple[TomlField, Any]]
) -> None:
    for key, value in table.items():
        here = (*path, key)
        if here in _FIELDS:
            entry = _FIELDS[here]
            count = len(problems)
            if value == MISSING:
                continue
            if here != (OPAQUE,):
                fitted = fit(value, entry.type, here, problems)
            elif not isinstance(fitted := value, dict):  # also a reference: nobody resolves it there
                problems.append(mismatch(here, "a table", value))
            if len(problems) == count:
                found.append((entry, fitted))
        elif here in _SECTIONS:
            if isinstance(value, dict):
                _check_section(value, here, problems, found)
            else:
                problems.append(mismatch(here, "a section", value))
        elif here in REFUSED:
            problems.append(Problem(format_path(here), f"this key is not supported: {REFUSED[here]}"))
        else:
            problems.append(_unknown_key(here))


def _unknown_key(path: tuple[str, ...]) -> Problem:
    near = nearest_path(path, [*_FIELDS, *(section for section in _SECTIONS if section)])
    siblings = [known[-1] for known in (*_FIELDS, *_SECTIONS) if known and known[:-1] == path[:-1]]
    where = f"[{format_path(path[:-1])}]" if path[:-1] else "the file"
    advice = f"did you mean '{format_path(near)}'?" if near else f"{where} takes: {', '.join(dict.fromkeys(siblings))}"
    return Problem(format_path(path), f"{where} has no key '{path[-1]}'", hint=advice)


def experiment_required() -> Problem:
    return Problem(
        "job.experiment",
        "[job].experiment is required: it names the recipe that this file changes",
        hint='write experiment = "<recipe>" in [job]',
    )
