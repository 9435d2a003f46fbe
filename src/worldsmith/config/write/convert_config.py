"""Converts a loaded config to TOML, YAML, JSON or Python that results in the same config, with its references."""

from __future__ import annotations

import copy
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

from worldsmith.config.command_line.overrides import apply_overrides, is_missing, parse_overrides
from worldsmith.config.declare.configurable import ABSENT, OPAQUE, Config, children, field_names, find, walk
from worldsmith.config.declare.value_types import holds_sections
from worldsmith.config.errors import UserError
from worldsmith.config.recipes.registry import find_recipe, is_recipe, recipe_task
from worldsmith.config.toml.recipe_toml import read_recipe_text
from worldsmith.config.toml.toml_schema import TASKS, TomlField
from worldsmith.config.tree.config_draft import Loaded, clear_overridden_alternatives
from worldsmith.config.tree.difference import Change, find_changes, same_value
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import MISSING, class_defaults, to_dict, to_plain
from worldsmith.config.write.describe_toml import keys_in_config
from worldsmith.config.write.values import (
    JSON,
    PYTHON,
    TOML,
    WORD,
    YAML,
    Syntax,
    Time,
    printable,
    python_text,
    write,
    write_toml,
)
from worldsmith.config.yaml.yaml_text import dump_yaml

FORMATS = ("toml", "yaml", "json", "python")
_WIDTH = 110
"""Max width of a line of Python."""
_TAKEN = {"config", "recipe", "datetime", "False", "None", "True"}
"""Names that the generated function of a recipe cannot have, because the module uses them."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A config that was converted to another format.

    Attributes:
        text: Content of the file.
        rest: Changes to the recipe that a recipe TOML cannot express; empty for other formats.
        words: The changes in `rest` as overrides for the command line.
    """

    text: str
    rest: list[Change] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def convert(loaded: Loaded, to: str, *, name: str | None = None) -> Converted:
    """Converts a config to the text of a file in another format.

    Args:
        loaded: Loaded config.
        to: Output format: "toml" (recipe TOML), "yaml", "json" or "python".
        name: For "python": name of the recipe that the module registers; None: derived from the name of the source.

    Raises:
        UserError: If the format cannot express a value.
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
    """Converts a config to a recipe TOML that contains the values that differ from the recipe.

    The text is read again, to check that it results in the same config together with the overrides in `words`.

    Raises:
        UserError: If the config is not based on a registered recipe.
        ValueError: If the text and the overrides do not result in the same config.
    """
    recipes = loaded.recipes()
    if not recipes:
        named = getattr(find(loaded.raw, ("job",)), "experiment", "")
        raise UserError(
            f"{loaded.source} cannot be written as toml: a recipe TOML starts from a registered recipe, and "
            f"job.experiment is '{named}'; use --to yaml, json or python"
        )
    name, base = recipes[-1]
    comment = f"# Keys that this file omits keep the value of the recipe {printable(name)}."
    text = f"{comment}\n\n{write_toml(_table(loaded.raw, name, base))}"
    draft, _ = read_recipe_text(text, "<toml>", [])
    clear_overridden_alternatives(draft)
    rest = find_changes(draft.tree, loaded.raw)
    words = [_format_override(change) for change in rest]
    _require_same(draft.tree, words, loaded.raw)
    return Converted(text, rest, words)


def to_python(loaded: Loaded, name: str | None = None) -> str:
    """Converts a config to the text of a Python module that registers it as a recipe.

    The recipe changes the recipe on which the config is based; without one, it contains the complete config.

    Args:
        loaded: Loaded config.
        name: Name of the new recipe; None: derived from the name of the source.

    Raises:
        UserError: If a recipe of that name exists.
    """
    recipes = loaded.recipes()
    base = recipes[-1] if recipes else None
    name = name or _free_name(loaded)
    if is_recipe(name):
        raise UserError(f"the recipe '{name}' already exists; choose another name with --name")
    module = find_recipe(base[0]).module if base else ""
    needs = "" if module.startswith("worldsmith.") or module == "__main__" else module
    origin = f"A recipe generated from {printable(loaded.source)}."
    return _write_module(loaded.raw, name, base=base, origin=origin, needs=needs)


def write_new(file: str, text: str, force: bool) -> None:
    """Writes a text file.

    Args:
        file: Path.
        text: Content.
        force: Whether an existing file may be overwritten.

    Raises:
        UserError: If the file exists and `force` is False, or it cannot be written.
    """
    path = pathlib.Path(file)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        raise UserError(f"{file} already exists; --force overwrites it") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def _format_override(change: Change) -> str:
    """Returns a change as an override for the command line; raises ValueError for text that it cannot contain."""
    path = format_path(change.path)
    if change.new is ABSENT:
        return f"~{path}"
    return f"{'+' if change.old is ABSENT else ''}{path}={write(to_plain(change.new), WORD)}"


def _free_name(loaded: Loaded) -> str:
    stem = re.split(r"[/\\]", loaded.source.rstrip("/\\"))[-1].partition(".")[0]
    stem = re.sub(r"\W", "_", stem, flags=re.ASCII).strip("_") or "run"
    return stem if not is_recipe(stem) else f"{stem}_changed"


def _table(tree: Config, name: str, base: Config) -> dict[str, Any]:
    """Returns the content of a recipe TOML: task and name of the recipe, and the values that differ from the recipe.

    Args:
        tree: Unresolved config.
        name: Name of the recipe.
        base: Config of the recipe.
    """
    table: dict[str, Any] = {"job": {"task": recipe_task(base) or TASKS[0], "experiment": name}}
    for entry, target in keys_in_config(base):
        if is_missing(tree, target):
            continue
        value, before = find(tree, target), find(base, target)
        if not same_value(value, before) and (toml_value := _toml_value(value, before, entry)) is not None:
            section = table
            for part in entry.path[:-1]:
                section = section.setdefault(part, {})
            section[entry.path[-1]] = toml_value
    custom = getattr(tree, OPAQUE, {})
    if not same_value(custom, getattr(base, OPAQUE, {})):
        table[OPAQUE] = custom
    return table


def _toml_value(value: Any, before: Any, entry: TomlField) -> Any:
    """Returns the value that a recipe TOML needs for a key.

    Args:
        value: Value of the config.
        before: Value of the recipe; table keys that are equal in both are omitted.
        entry: The key.

    Returns:
        The value as plain data; None if TOML cannot express the change: null, text "???", removed keys.
    """
    if isinstance(value, dict) and isinstance(before, dict):
        value = {key: item for key, item in value.items() if key not in before or not same_value(item, before[key])}
    if holds_sections(entry.type):
        value = to_plain(value)
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
    if problems or find_changes(found, wanted, custom=True):
        where = ", ".join(format_path(change.path) for change in find_changes(found, wanted, custom=True))
        raise ValueError(f"the converted config would differ from the source in {where or problems[0].render()}")


def _require_form(data: dict[str, Any], syntax: Syntax) -> None:
    for path, value in walk(data):
        try:
            write([] if isinstance(value, (dict, list)) else value, syntax)
        except ValueError as error:
            raise ValueError(f"{format_path(path)}: {error}; write it as text, or choose another format") from None


def _write_module(tree: Config, name: str, *, base: tuple[str, Config] | None, origin: str, needs: str = "") -> str:
    """Returns the text of a Python module whose recipe `name` builds a config.

    Args:
        tree: Config.
        name: Name of the recipe.
        base: (name, config) of the recipe that it starts from. None, or a config of another class: the module contains
            the complete config.
        origin: Docstring of the module.
        needs: Module that registers the base and must be imported; "": none.
    """
    writer = PythonWriter()
    root = writer.name_of(type(tree))
    function = re.sub(r"\W", "_", name, flags=re.ASCII)
    function = function if function.isidentifier() and function not in _TAKEN else f"recipe_{function}"
    if base is not None and type(base[1]) is type(tree):
        lines = writer.changes(base[1], tree)
        decorator = f"@recipe({python_text(name)}, starts_from={python_text(base[0])})"
        head = f"def {function}(config: {root}) -> {root}:"
        doc = f"Changes of the recipe {base[0]}."
        body = [*lines, "return config"]
    else:
        decorator, head, doc = f"@recipe({python_text(name)})", f"def {function}() -> {root}:", "The complete config."
        body = writer.statement("return ", tree)
    text = "\n".join([decorator, head, f'    """{_escape_for_docstring(doc)}"""', *(f"    {line}" for line in body)])
    imports = [*writer.imports(), *([f"import {needs}  # registers {base[0]}" if base else ""] if needs else [])]
    return "\n".join(
        [
            f'"""{_escape_for_docstring(origin)}"""',
            "",
            "from __future__ import annotations",
            "",
            *imports,
            "",
            "",
            text,
            "",
        ]
    )


class PythonWriter:
    """Writes values as Python expressions and collects the imports that they need."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {("worldsmith.config", "recipe"): "recipe"}
        self._uses_datetime = False

    def imports(self) -> list[str]:
        by_module: dict[str, list[str]] = {}
        for (module, name), known in self._names.items():
            by_module.setdefault(module, []).append(name if known == name else f"{name} as {known}")
        found = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(by_module.items())]
        return [*(["import datetime", ""] if self._uses_datetime else []), *found]

    def name_of(self, cls: type) -> str:
        """Returns the Python expression for a Config class, such as ``Trainer.Config``, and records its import.

        Raises:
            ValueError: If the class is defined inside a function.
        """
        if "<locals>" in cls.__qualname__:
            raise ValueError(f"{cls.__qualname__} is defined inside a function and cannot be imported")
        outer, dot, rest = cls.__qualname__.partition(".")
        key = (cls.__module__, outer)
        if key not in self._names:
            taken = {*self._names.values(), "config", "datetime"}
            self._names[key] = next(
                name for number in range(1, 10**6) if (name := f"{outer}{number if number > 1 else ''}") not in taken
            )
        return f"{self._names[key]}{dot}{rest}"

    def changes(self, old: Config, new: Config) -> list[str]:
        """Returns the statements that change the variable ``config`` from `old` to `new`."""
        lines: list[str] = []
        for change in find_changes(old, new, custom=True):
            target = _format_as_python(change.path, old)
            if change.new is ABSENT:
                lines.append(f"del {target}")
            else:
                lines += self.statement(f"{target} = ", change.new)
        return lines

    def statement(self, start: str, value: Any) -> list[str]:
        lines = self.expression(value)
        return [start + lines[0], *lines[1:]]

    def expression(self, value: Any) -> list[str]:
        """Returns the lines of a Python expression: one line if it fits, else one line per item."""
        parts: list[tuple[str, Any]]
        if isinstance(value, Config):
            defaults = class_defaults(type(value))
            fields = [(name, getattr(value, name)) for name in field_names(type(value))]
            parts = [(f"{n}=", v) for n, v in fields if n not in defaults or not same_value(v, defaults[n])]
            opening, closing = f"{self.name_of(type(value))}(", ")"
        elif isinstance(value, dict):
            parts, opening, closing = [(f"{python_text(key)}: ", item) for key, item in value.items()], "{", "}"
        elif isinstance(value, list):
            parts, opening, closing = [("", item) for item in value], "[", "]"
        else:
            self._uses_datetime |= isinstance(value, Time)
            return [write(value, PYTHON)]
        items = [self.statement(start, item) for start, item in parts]
        flat = opening + ", ".join(item[0] for item in items) + closing
        if all(len(item) == 1 for item in items) and len(flat) <= _WIDTH and not isinstance(value, Config):
            return [flat]
        if isinstance(value, Config) and all(len(item) == 1 for item in items) and len(flat) <= _WIDTH - 40:
            return [flat]
        inner = [f"    {line}" for item in items for line in [*item[:-1], f"{item[-1]},"]]
        return [opening, *inner, closing]


def _format_as_python(path: Path, tree: Config) -> str:
    """Formats the path of a value in the config `tree` as Python, as in ``config.trainer.callbacks["clip"].norm``."""
    text = "config"
    node: Any = tree
    for part in path:
        is_field = isinstance(node, Config)
        text += f".{part}" if is_field else f"[{python_text(part) if isinstance(part, str) else part}]"
        node = getattr(node, str(part)) if is_field else dict(children(node)).get(part)
    return text


def _escape_for_docstring(text: str) -> str:
    """Escapes text for a Python docstring."""
    return python_text(text)[1:-1]
