"""The text of a recipe TOML against its schema: syntax, unknown keys, types."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.value_types import fit, holds_sections, mismatch
from worldsmith.config.errors import SHOWN, ConfigError, Place, Problem
from worldsmith.config.text_file import check_extent
from worldsmith.config.toml.schema import REFUSED, TASKS, TomlField, remap, toml_fields
from worldsmith.config.tree.access import ABSENT, find
from worldsmith.config.tree.paths import Path, flatten, format_path
from worldsmith.config.tree.plain import MISSING, OPAQUE
from worldsmith.config.tree.suggest import did_you_mean_path
from worldsmith.config.write.values import WORD, write

_WORDS = {"true": "true", "false": "false", "yes": "true", "no": "false", "none": '"???"', "null": '"???"'}
"""What other languages call a value, and how TOML says it."""


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """`tomllib.loads`, with ConfigError for whatever is wrong with the text."""
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
            if word and (meant := _WORDS.get(word[0].lower())):
                hint = f"write {meant}"
        raise ConfigError([Problem("", f"not valid TOML: {message}", hint=hint, place=place)]) from None


def check_table(
    table: dict[str, Any], problems: list[Problem], tree: Config | None = None, task: str = TASKS[0]
) -> list[tuple[TomlField, Any]]:
    """The known keys of a table that are set and have the right type, in file order; the rest goes to `problems`.

    `tree` is the recipe's, which says what else could be changed, though not in this file.
    """
    check = _Check({entry.path: entry for entry in toml_fields()}, problems, tree, task)
    check.section(table, ())
    return check.found


@dataclass(slots=True)
class _Check:
    fields: dict[Path, TomlField]
    problems: list[Problem]
    tree: Config | None
    task: str
    found: list[tuple[TomlField, Any]] = field(default_factory=list)
    sections: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        self.sections = list(dict.fromkeys(path[:length] for path in self.fields for length in range(1, len(path))))

    def section(self, table: dict[str, Any], path: Path) -> None:
        for key, value in table.items():
            here = (*path, key)
            if here in self.fields:
                self.value(self.fields[here], value)
            elif here in self.sections:
                if isinstance(value, dict):
                    self.section(value, here)
                else:
                    self.problems.append(mismatch(here, "a section", value))
            elif here in REFUSED and value is False:
                pass  # as it is here
            elif here in REFUSED:
                self.problems.append(Problem(format_path(here), f"this key is not supported: {REFUSED[here]}"))
            else:
                self.problems.append(self.unknown(here, value))

    def value(self, entry: TomlField, value: Any) -> None:
        if value == MISSING:
            return
        count = len(self.problems)
        if holds_sections(entry.type):  # the tree reads its sections
            if not isinstance(value, list):
                self.problems.append(
                    mismatch(entry.path, f"a list of sections, each [[{format_path(entry.path)}]]", value)
                )
        elif entry.path != (OPAQUE,):
            value = fit(value, entry.type, entry.path, self.problems)
        elif not isinstance(value, dict):  # also a reference: nobody resolves it there
            self.problems.append(mismatch(entry.path, "a table", value))
        if len(self.problems) == count:
            self.found.append((entry, value))

    def unknown(self, path: Path, value: Any) -> Problem:
        where = f"[{format_path(path[:-1])}]" if path[:-1] else "the file"
        message = f"{where} has no key '{path[-1]}'"
        if len(self.problems) >= SHOWN:
            return Problem(format_path(path), message)
        siblings = [str(known[-1]) for known in [*self.sections, *self.fields] if known[:-1] == path[:-1]]
        near = did_you_mean_path(path, [*self.fields, *self.sections])
        advice = near or f"{where} takes: {', '.join(siblings)}"
        if words := self.words(path, value):
            advice = f"it is a value of the tree, and this file has no key for it; write -- {' '.join(words)}"
        return Problem(format_path(path), message, hint=advice)

    def words(self, path: Path, value: Any) -> list[str]:
        """The override words that say what a key of the tree, which is none of this file, was to say."""
        leaves = flatten(value) if isinstance(value, dict) else [((), value)]
        words = []
        for rest, leaf in leaves:
            for target in ((*path, *rest), remap((*path, *rest), self.task)):
                if self.tree is not None and target and find(self.tree, target, ABSENT) is not ABSENT:
                    words.append(shlex.quote(f"{format_path(target)}={write(leaf, WORD)}"))
                    break
        return words
