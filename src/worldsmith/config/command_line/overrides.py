"""Overrides: ``a.b=v`` sets, ``+a.b=v`` adds a table key, ``++a.b=v`` does either, ``~a.b`` removes a table key.

Paths are those of the typed config, of the recipe TOML, or of the config of the published framework. Unquoted text is
converted to the type of its field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsmith.config.command_line.class_choice import named_class, named_items
from worldsmith.config.command_line.literals import Literal, Scalar, decode, fit_literal, read_text
from worldsmith.config.declare.configurable import ABSENT, OPAQUE, Config, all_paths, child_hint, children, find
from worldsmith.config.declare.value_types import holds_sections, item_hint, nested_config_classes
from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.toml.toml_schema import REFUSED, TASKS, published_path, remap, toml_fields
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.plain import MISSING
from worldsmith.config.tree.provenance import remember
from worldsmith.config.tree.read_config import Reader
from worldsmith.config.tree.suggest import did_you_mean_path
from worldsmith.config.write.values import WORD, write

_WORD = re.compile(r"(\+\+|\+|~)?((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^=\"'])+)(?:(=)(.*))?", re.DOTALL)


RECIPE_WORDS = {("experiment",), ("job", "experiment")}
"""Paths of overrides that select the recipe of a run; all other overrides change a value."""


@dataclass(frozen=True, slots=True)
class Override:
    """One change of the config by an override or a flag.

    Attributes:
        action: Operator: "" sets, "+" adds a table key, "++" does either, "~" removes a table key.
        path: Path of the value.
        given: Unparsed text of the value, or the parsed value of a flag; None for a removal.
        place: Position on the command line, with the argument as its text.
    """

    action: str
    path: Path
    given: str | Literal | None
    place: Place

    @property
    def word(self) -> str:
        """The override as an argument of the command line."""
        if self.place.file == "override" or self.given is None:
            return self.place.source or ""
        text = self.given if isinstance(self.given, str) else write(fit_literal(self.given, Any), WORD)
        return f"{self.action}{format_path(self.path)}={text}"


def parse_overrides(words: Sequence[str], problems: list[Problem]) -> list[Override]:
    """Parses overrides such as ``a.b=v``. Empty ones and ``--`` are ignored.

    Args:
        words: Arguments of the command line.
        problems: Receives a problem for each malformed argument.
    """
    found = []
    for word in words:
        if word.strip() in ("", "--"):
            continue
        shown = word.encode("utf-8", "replace").decode()
        place = Place("override", None, 1, len(shown), shown)
        override = _parse(word, place)
        if isinstance(override, Problem):
            problems.append(override.at(place))
        else:
            found.append(override)
    return found


def take_recipe(overrides: Sequence[Override]) -> tuple[Override | None, list[Override]]:
    """Separates the override that selects a recipe from those that change values.

    Returns:
        The last override that selects a recipe (None without one; earlier ones are dropped), and the overrides that
        change values.
    """
    chosen = [override for override in overrides if override.path in RECIPE_WORDS and override.action != "~"]
    return (chosen[-1] if chosen else None), [override for override in overrides if override not in chosen]


def recipe_name(override: Override) -> str:
    """Returns the name of the recipe that an override selects."""
    return override.given.strip("'\" ") if isinstance(override.given, str) else ""


def chosen_recipe(override: Override) -> Config:
    """Returns the config of the recipe that an override selects.

    Raises:
        ConfigError: If the recipe does not exist, with the position of the override.
    """
    try:
        return get_recipe(recipe_name(override))
    except ConfigError as error:
        raise ConfigError(replace(p, path="job.experiment", place=override.place) for p in error.problems) from None


def fixed_recipe_problem(override: Override, name: str) -> Problem:
    """Returns the problem of an override that selects a recipe although the file contains a complete config.

    Args:
        override: Override that selects the recipe.
        name: Recipe from which the config in the file was built, for the message.
    """
    message = f"the file is a complete config, built from the recipe '{name}'; an override cannot select another recipe"
    return Problem("job.experiment", message, hint="name the recipe instead of the file", place=override.place)


def apply_overrides(
    tree: Config,
    overrides: Sequence[Override],
    problems: list[Problem],
    warnings: list[str],
    task: str | None = None,
    *,
    places: dict[Path, Place] | None = None,
    broken: list[Path] | None = None,
) -> None:
    """Applies overrides to a config in place.

    Args:
        tree: Unresolved config.
        overrides: Parsed overrides.
        problems: Receives the mistakes.
        warnings: Receives the warnings.
        task: Task of the config, "vfm" or "vlm", on which the conversion of TOML paths depends; None: only paths of
            the typed config are valid.
        places: Receives the source position of each changed path.
        broken: Receives the paths that could not be set.
    """
    for override in overrides:
        shown = override.place.source
        target = to_tree_path(tree, override.path, task)
        if target in REFUSED:
            if override.given != "false":
                problem = Problem(format_path(override.path), f"this key is not supported: {REFUSED[target]}")
                problems.append(problem.at(override.place))
            continue
        if target is None:
            warnings.append(f"{shown}: {format_path(override.path)} has no effect for task '{task}'")
            continue
        if target == published_path(override.path):
            warnings.append(f"{shown}: {format_path(override.path)} is {format_path(target)} here")
        target = _with_indexes(tree, target)
        mistakes: list[Problem] = []
        notes: list[str] = []
        raw = _apply(tree, override, target, mistakes, notes)
        warnings += [f"{shown}: {note}" for note in notes]
        problems.extend(mistake.at(override.place) for mistake in mistakes)
        if places is not None:
            remember(places, target, override.place, raw)
        if broken is not None and mistakes:
            broken.append(target)


def to_tree_path(tree: Config, path: Path, task: str | None) -> Path | None:
    """Converts the path of an override to a path of the typed config.

    Args:
        tree: Config.
        path: Path of the typed config, of the config of cosmos_framework, or of the recipe TOML; tried in this order.
        task: Task of the config, "vfm" or "vlm"; any other value: the path is returned unchanged.

    Returns:
        The path; None if the key has no effect for the task.
    """
    if task not in TASKS or find(tree, path, ABSENT) is not ABSENT:
        return path
    if published := published_path(path):
        return published
    return remap(path, task) if any(starts_with(path, key.path) for key in toml_fields()) else path


def set_value(
    tree: Config,
    path: Path,
    raw: Any,
    problems: list[Problem],
    warnings: list[str] | None = None,
    *,
    create: bool = True,
) -> None:
    """Sets a value of a config in place, after a check of its type.

    Args:
        tree: Unresolved config.
        path: Path of the value. Fields must exist.
        raw: The value as plain data.
        problems: Receives the mistakes; the config is then unchanged.
        warnings: Receives the warnings; None: they are dropped.
        create: Whether a new key of a table may be added; False: a missing key is a mistake.
    """
    found = find_parent(tree, path, problems)
    if found is None:
        return
    parent, hint = found
    key = path[-1]
    below = find(parent, (key,), ABSENT)
    if isinstance(parent, Config):
        if key == OPAQUE:
            problems.append(Problem(OPAQUE, "this section is the project's own data and can only be set in the file"))
            return
        if below is ABSENT:
            problems.append(no_such_key(tree, path))
            return
    elif below is ABSENT:
        if isinstance(parent, list):
            message = f"the list has {len(parent)} items, numbered from 0; to add items, set the complete list"
            problems.append(Problem(format_path(path), message))
            return
        if nested_config_classes(hint) and not (isinstance(raw, dict) and "type" in raw):
            problems.append(no_such_key(tree, path))
            return
        if not create:
            advice = f"to add it, write +{format_path(path)}=…"
            problems.append(Problem(format_path(path), f"the table has no key '{key}'", hint=advice))
            return
    count = len(problems)
    value = Reader(problems, warnings).value(hint, None if below is ABSENT else below, raw, path, ())
    if len(problems) > count:
        return
    if isinstance(parent, Config):
        setattr(parent, str(key), value)
    else:
        parent[key] = value


def find_parent(tree: Config, path: Path, problems: list[Problem]) -> tuple[Any, Any] | None:
    """Finds the section, table or list that contains the value at a path.

    Args:
        tree: Config.
        path: Path of the value.
        problems: Receives a problem if the path cannot exist.

    Returns:
        The section, table or list, and the type of the value; None if the path cannot exist.
    """
    node: Any = tree
    hint: Any = type(tree)
    for depth, part in enumerate(path[:-1]):
        inner = find(node, (part,), ABSENT)
        if inner is ABSENT:
            problems.append(no_such_key(tree, path, depth))
            return None
        node, hint = inner, child_hint(node, part, hint)
    if not isinstance(node, (Config, dict, list)):
        problems.append(Problem(format_path(path), f"'{format_path(path[:-1])}' is a single value and has no keys"))
        return None
    if isinstance(node, list) != isinstance(path[-1], int):
        kind = "a list; its items are numbers" if isinstance(node, list) else "expected an index: it is a list"
        problems.append(Problem(format_path(path), f"'{format_path(path[:-1])}' is {kind}"))
        return None
    return node, child_hint(node, path[-1], hint)


def no_such_key(tree: Config, path: Path, depth: int | None = None) -> Problem:
    """Returns the problem of a config path that does not exist, with the most similar existing path.

    Args:
        tree: Config.
        path: Path that does not exist.
        depth: Index in `path` of the first key that does not exist; None: only the last key does not exist.
    """
    missing = path if depth is None else path[: depth + 1]
    near = did_you_mean_path(path, all_paths(tree)) or did_you_mean_path(missing, all_paths(tree))
    parent = find(tree, missing[:-1])
    listing = ", ".join(str(name) for name, _ in children(parent))
    where = f"'{format_path(missing[:-1])}'" if len(missing) > 1 else "the config"
    advice = near or f"{where} has: {listing or 'no keys'}"
    return Problem(format_path(path), f"{where} has no key '{missing[-1]}'", hint=advice)


def is_missing(tree: Config, path: Path) -> bool:
    """Returns whether a config has no field or key at `path`. Tables of plain values accept any key."""
    parent = find(tree, path[:-1])
    if isinstance(parent, dict) and not any(isinstance(value, Config) for value in parent.values()):
        return False
    return find(parent, path[-1:], ABSENT) is ABSENT


def _with_indexes(tree: Config, path: Path) -> Path:
    """Returns a path of a config with integer indexes for list items: ``betas.0`` means ``betas[0]``."""
    found: Path = ()
    for part in path:
        in_list = isinstance(part, str) and part.isascii() and part.isdigit() and isinstance(find(tree, found), list)
        found = (*found, int(part) if in_list else part)
    return found


def _parse(word: str, place: Place) -> Override | Problem:
    """Parses one override at the command-line position `place`; returns a Problem if it is malformed."""
    if any("\ud800" <= letter <= "\udfff" for letter in word):
        return Problem("", "the argument is not valid UTF-8")
    match = _WORD.fullmatch(word)
    if match is None:
        return Problem("", "not an override", expected="path=value, +path=value or ~path", found=repr(word))
    if word.startswith("--"):
        return Problem("", "flags come before `--`, overrides such as path=value after it", hint="move it before `--`")
    action, left, equals, text = match[1] or "", match[2].strip(), match[3], match[4]
    try:
        path = parse_path(left)
    except ValueError as error:
        return Problem("", str(error), hint="an override is path=value, +path=value or ~path")
    if action == "~":
        return Override(action, path, None, place) if not equals else Problem(format_path(path), "~ must have no value")
    if not equals:
        return Problem(format_path(path), "the value is missing", hint=f"write {format_path(path)}=…")
    if text.strip() == MISSING:
        return Problem(format_path(path), f"'{MISSING}' stands for a missing value", hint="write the value")
    return Override(action, path, text, place)


def _apply(tree: Config, override: Override, path: Path, problems: list[Problem], warnings: list[str]) -> Any:
    """Applies one override to a config in place.

    Args:
        tree: Unresolved config.
        override: Override.
        path: Path of the override, converted to one of the typed config.
        problems: Receives the mistakes; the config is then unchanged.
        warnings: Receives the warnings.

    Returns:
        The value as plain data; None for a removal, and if the value cannot be determined.
    """
    if override.action == "~":
        return _remove(tree, path, problems)
    found = find_parent(tree, path, problems)
    if found is None:
        return None
    parent, hint = found
    if path[-1] in dict(children(parent)) and override.action == "+":
        advice = f"to change it, write {format_path(path)}=…"
        problems.append(Problem(format_path(path), "this key already exists", hint=advice))
        return None
    given = override.given
    sections = nested_config_classes(hint)
    if isinstance(given, str) and sections and re.fullmatch(r"\s*[A-Za-z_][\w.]*\s*", given) and decode(given) == given:
        tag = named_class(given.strip(), hint, path)
        if isinstance(tag, Problem):
            problems.append(tag)
            return None
        given = {"type": Scalar(tag, quoted=True)}
    try:
        raw = read_text(given, hint) if isinstance(given, str) else fit_literal(given or {}, hint)
    except ValueError as error:
        problems.append(Problem(format_path(path), f"the value cannot be parsed: {error}"))
        return None
    if isinstance(raw, list) and holds_sections(hint):
        items = named_items(raw, item_hint(hint, list), path)
        if isinstance(items, Problem):
            problems.append(items)
            return None
        raw = items
    set_value(tree, path, raw, problems, warnings, create=override.action != "" or not sections)
    return raw


def _remove(tree: Config, path: Path, problems: list[Problem]) -> None:
    found = find_parent(tree, path, problems)
    if found is None:
        return
    parent, _ = found
    if path[-1] not in dict(children(parent)):
        problems.append(no_such_key(tree, path))
    elif isinstance(parent, Config):
        advice = f"to disable it, write {format_path(path)}=null if the field accepts null"
        problems.append(Problem(format_path(path), "fields cannot be removed, only keys of tables", hint=advice))
    else:
        del parent[path[-1]]
