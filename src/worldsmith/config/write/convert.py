"""A loaded run as text in another form that leads to the same tree, references included."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldsmith.config.declare.configurable import Config, walk
from worldsmith.config.declare.value_types import holds_sections
from worldsmith.config.errors import UserError
from worldsmith.config.recipes.registry import find_recipe, is_recipe
from worldsmith.config.toml.recipe_toml import read_recipe_text
from worldsmith.config.toml.schema import TASKS, TomlField
from worldsmith.config.tree.access import ABSENT, find
from worldsmith.config.tree.difference import Change, changes, same_value
from worldsmith.config.tree.draft import Loaded, give_way, recipe_task
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.plain import MISSING, OPAQUE, plain, to_dict
from worldsmith.config.words.overrides import apply_overrides, is_missing, parse_overrides
from worldsmith.config.write.json_schema_toml import keys_of
from worldsmith.config.write.toml import write_toml
from worldsmith.config.write.values import JSON, TOML, WORD, YAML, Syntax, printable, write
from worldsmith.config.yaml.text import dump_yaml

FORMATS = ("toml", "yaml", "json", "python")


@dataclass(frozen=True, slots=True)
class Converted:
    """The text, and for TOML what its sections have no place for: the changes, also as override words."""

    text: str
    rest: list[Change] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def convert(loaded: Loaded, to: str, *, name: str | None = None) -> Converted:
    """The run in one of `FORMATS`. `name` is the recipe that a Python module registers.

    Raises UserError for a value that the form cannot hold.
    """
    try:
        if to == "toml":
            return to_toml(loaded)
        if to == "python":
            return Converted(to_python(loaded, name))
        data = to_dict(loaded.raw, custom=True)
        if to == "json":
            from worldsmith.config.write.json_text import dump_json

            _require_form(data, JSON)
            return Converted(dump_json(data))
        _require_form(data, YAML)
        return Converted(dump_yaml(data))
    except (ValueError, TypeError) as error:
        raise UserError(f"{loaded.source} cannot be written as {to}: {error}") from error


def to_toml(loaded: Loaded) -> Converted:
    """A recipe TOML with what differs from the recipe. Its text, with the words, is read back and compared."""
    recipes = loaded.recipes()
    if not recipes:
        named = getattr(find(loaded.raw, ("job",)), "experiment", "")
        raise UserError(
            f"{loaded.source} cannot be written as toml: a recipe TOML starts from a registered recipe, and "
            f"job.experiment is '{named}'; use --to yaml, json or python"
        )
    name, base = recipes[-1]
    comment = f"# What this file leaves out keeps the value of the recipe {printable(name)}."
    text = f"{comment}\n\n{write_toml(_table(loaded.raw, name, base))}"
    draft, _ = read_recipe_text(text, "<toml>", [])
    give_way(draft)
    rest = changes(draft.tree, loaded.raw)
    words = [_word(change) for change in rest]
    _require_same(draft.tree, words, loaded.raw)
    return Converted(text, rest, words)


def to_python(loaded: Loaded, name: str | None = None) -> str:
    """A module that registers the tree as a recipe, by its changes from the recipe that it starts from."""
    from worldsmith.config.write.python import write_module

    recipes = loaded.recipes()
    base = recipes[-1] if recipes else None
    name = name or _free_name(loaded)
    if is_recipe(name):
        raise UserError(f"there is a recipe '{name}' already; choose another with --name")
    module = find_recipe(base[0]).module if base else ""
    needs = "" if module.startswith("worldsmith.") or module == "__main__" else module
    origin = f"A recipe made from {printable(loaded.source)}."
    return write_module(loaded.raw, name, base=base, origin=origin, needs=needs)


def _word(change: Change) -> str:
    """The override word of a change. Raises ValueError for text that no command line can hold."""
    path = format_path(change.path)
    if change.new is ABSENT:
        return f"~{path}"
    return f"{'+' if change.old is ABSENT else ''}{path}={write(plain(change.new), WORD)}"


def _free_name(loaded: Loaded) -> str:
    stem = re.split(r"[/\\]", loaded.source.rstrip("/\\"))[-1].partition(".")[0]
    stem = re.sub(r"\W", "_", stem, flags=re.ASCII).strip("_") or "run"
    return stem if not is_recipe(stem) else f"{stem}_changed"


def _table(tree: Config, name: str, base: Config) -> dict[str, Any]:
    """The keys of the recipe TOML that say what differs from the recipe."""
    table: dict[str, Any] = {"job": {"task": recipe_task(base) or TASKS[0], "experiment": name}}
    for entry, target in keys_of(base):
        if is_missing(tree, target):
            continue
        value, before = find(tree, target), find(base, target)
        if not same_value(value, before) and (stated := _stated(value, before, entry)) is not None:
            section = table
            for part in entry.path[:-1]:
                section = section.setdefault(part, {})
            section[entry.path[-1]] = stated
    custom = getattr(tree, OPAQUE, {})
    if not same_value(custom, getattr(base, OPAQUE, {})):
        table[OPAQUE] = custom
    return table


def _stated(value: Any, before: Any, entry: TomlField) -> Any:
    """The value of a key as the file would say it; None if TOML cannot: null, the text "???", keys that go away."""
    if isinstance(value, dict) and isinstance(before, dict):
        value = {key: item for key, item in value.items() if key not in before or not same_value(item, before[key])}
    if holds_sections(entry.type):
        value = plain(value)
    if value == MISSING or value == {}:
        return None
    try:
        write(value, TOML)
    except ValueError:
        return None
    return value


def _require_same(tree: Config, words: list[str], wanted: Config) -> None:
    problems: list[Any] = []
    found = copy.deepcopy(tree)
    apply_overrides(found, parse_overrides(words, problems), problems, [])
    if problems or changes(found, wanted, custom=True):
        where = ", ".join(format_path(change.path) for change in changes(found, wanted, custom=True))
        raise ValueError(f"the text would not lead back to the same tree ({where or problems[0].render()})")


def _require_form(data: dict[str, Any], syntax: Syntax) -> None:
    for path, value in walk(data):
        try:
            write([] if isinstance(value, (dict, list)) else value, syntax)
        except ValueError as error:
            raise ValueError(f"{format_path(path)}: {error}; write it as text, or choose another form") from None


def write_new(file: str, text: str, force: bool) -> None:
    """Writes a file. Raises UserError if it is there already and `force` is not given."""
    path = Path(file)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError(f"{file} is there already; --force overwrites it") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
