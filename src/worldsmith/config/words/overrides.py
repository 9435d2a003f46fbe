"""Override words: ``a.b=v`` sets, ``+a.b=v`` adds a table key, ``++a.b=v`` does either, ``~a.b`` removes a table key.

Paths are those of the tree, or those of the recipe TOML. Unquoted text takes the type of its field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.value_types import nested_config_classes
from worldsmith.config.errors import Place, Problem
from worldsmith.config.toml.schema import TASKS, remap, toml_fields
from worldsmith.config.tree.access import ABSENT, all_paths, child_hint, children, find
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.plain import MISSING, OPAQUE
from worldsmith.config.tree.provenance import remember
from worldsmith.config.tree.reader import Reader
from worldsmith.config.tree.suggest import nearest_path
from worldsmith.config.words.literals import read_text

_WORD = re.compile(r"(\+\+|\+|~)?((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^=\"'])+)(?:(=)(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Override:
    """One word: what to do ("", "+", "++" or "~"), where, and the text of the value (None for a removal).

    `kind` says whether it was written as an override or as a typed flag; a word may carry what was typed as ``flag``.
    """

    action: str
    path: Path
    text: str | None
    word: str
    kind: str = "override"

    @property
    def place(self) -> Place:
        return _word_place(getattr(self.word, "flag", self.word), self.kind)


def parse_overrides(words: Sequence[str], problems: list[Problem], kind: str = "override") -> list[Override]:
    """Reads the words; empty ones and ``--`` are dropped, malformed ones are added to `problems`."""
    found = []
    for word in words:
        if word.strip() in ("", "--"):
            continue
        override = _parse(word)
        if isinstance(override, Problem):
            problems.append(override.at(_word_place(getattr(word, "flag", word), kind)))
        else:
            found.append(replace(override, kind=kind))
    return found


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
    """Changes `tree` in place; mistakes are added to `problems`.

    `task` chooses the table by which TOML paths are translated; without it only tree paths are known. `places`
    receives where each changed path was written, `broken` the paths that could not be set.
    """
    for override in overrides:
        target = translate(tree, override.path, task)
        if target is None:
            warnings.append(f"{override.word}: {format_path(override.path)} has no effect for task '{task}'")
            continue
        mistakes: list[Problem] = []
        notes: list[str] = []
        raw = _apply(tree, override, target, mistakes, notes)
        warnings += [f"{override.place.source}: {note}" for note in notes]
        problems.extend(mistake.at(override.place) for mistake in mistakes)
        if places is not None:
            remember(places, target, override.place, raw)
        if broken is not None and mistakes:
            broken.append(target)


def translate(tree: Config, path: Path, task: str | None) -> Path | None:
    """The tree path that a path of an override means: itself if the tree has it, else its TOML meaning."""
    if task not in TASKS or find(tree, path, ABSENT) is not ABSENT:
        return path
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
    """Sets a typed value in place. A new key of a table is made if `create`; fields must exist."""
    found = find_parent(tree, path, problems)
    if found is None:
        return
    parent, hint = found
    key = path[-1]
    known = dict(children(parent))
    if isinstance(parent, Config):
        if key == OPAQUE:
            problems.append(Problem(OPAQUE, "this section is the project's own data and is set in the file only"))
            return
        if key not in known:
            problems.append(no_such_key(tree, path))
            return
    elif key not in known:
        if isinstance(parent, list):
            problems.append(Problem(format_path(path), f"the list has {len(parent)} items; write the whole list"))
            return
        if nested_config_classes(hint) and not (isinstance(raw, dict) and "type" in raw):
            problems.append(no_such_key(tree, path))
            return
        if not create:
            advice = f"to add it, write +{format_path(path)}=…"
            problems.append(Problem(format_path(path), f"the table has no key '{key}'", hint=advice))
            return
    if isinstance(raw, str) and nested_config_classes(hint) and "${" not in raw:
        advice = f"set its fields, such as {format_path(path)}.{next(iter(dict(children(known.get(key)))), 'field')}=…"
        problems.append(Problem(format_path(path), "this is a section, not a single value", hint=advice))
        return
    count = len(problems)
    value = Reader(problems, warnings).value(hint, known.get(key), raw, path, ())
    if len(problems) > count:
        return
    if isinstance(parent, Config):
        setattr(parent, str(key), value)
    else:
        parent[key] = value


def find_parent(tree: Config, path: Path, problems: list[Problem]) -> tuple[Any, Any] | None:
    """The section, table or list that holds a path, and the type of the value there."""
    node: Any = tree
    hint: Any = type(tree)
    for depth, part in enumerate(path[:-1]):
        inner = find(node, (part,), ABSENT)
        if inner is ABSENT:
            problems.append(no_such_key(tree, path, depth))
            return None
        node, hint = inner, child_hint(node, part, hint)
    if not isinstance(node, (Config, dict, list)):
        problems.append(Problem(format_path(path), f"'{format_path(path[:-1])}' is a single value and holds no keys"))
        return None
    if isinstance(node, list) != isinstance(path[-1], int):
        kind = "a list; its items are numbers" if isinstance(node, list) else "not a list"
        problems.append(Problem(format_path(path), f"'{format_path(path[:-1])}' is {kind}"))
        return None
    return node, child_hint(node, path[-1], hint)


def no_such_key(tree: Config, path: Path, depth: int | None = None) -> Problem:
    """The problem of a path that the tree does not have, with the nearest one that it has."""
    missing = path if depth is None else path[: depth + 1]
    near = nearest_path(path, all_paths(tree)) or nearest_path(missing, all_paths(tree))
    parent = find(tree, missing[:-1])
    listing = ", ".join(str(name) for name, _ in children(parent))
    where = f"'{format_path(missing[:-1])}'" if len(missing) > 1 else "the tree"
    advice = f"did you mean '{format_path(near)}'?" if near else f"{where} has: {listing or 'no keys'}"
    return Problem(format_path(path), f"{where} has no key '{missing[-1]}'", hint=advice)


def is_missing(tree: Config, path: Path) -> bool:
    """Whether nothing in the tree could take a value at `path`. Tables of plain values take new keys."""
    parent = find(tree, path[:-1])
    if isinstance(parent, dict) and not any(isinstance(value, Config) for value in parent.values()):
        return False
    return path[-1] not in dict(children(parent))


def _parse(word: str) -> Override | Problem:
    if any("\ud800" <= letter <= "\udfff" for letter in word):
        return Problem("", "the word is not valid UTF-8")
    match = _WORD.fullmatch(word)
    if match is None:
        return Problem("", "this is no override", expected="path=value, +path=value or ~path", found=repr(word))
    action, left, equals, text = match[1] or "", match[2].strip(), match[3], match[4]
    try:
        path = parse_path(left)
    except ValueError as error:
        return Problem("", str(error), hint="an override is path=value, +path=value or ~path")
    if action == "~":
        return Override(action, path, None, word) if not equals else Problem(format_path(path), "~ takes no value")
    if not equals:
        return Problem(format_path(path), "no value is given", hint=f"write {format_path(path)}=…")
    if text.strip() == MISSING:
        return Problem(format_path(path), f"'{MISSING}' stands for a value that is missing", hint="write the value")
    return Override(action, path, text, word)


def _apply(tree: Config, override: Override, path: Path, problems: list[Problem], warnings: list[str]) -> Any:
    """Does what the word says; returns the value that it gives."""
    if override.action == "~":
        return _remove(tree, path, problems)
    found = find_parent(tree, path, problems)
    if found is None:
        return None
    parent, hint = found
    if path[-1] in dict(children(parent)) and override.action == "+":
        advice = f"to change it, write {format_path(path)}=…"
        problems.append(Problem(format_path(path), "this key exists already", hint=advice))
        return None
    try:
        raw = read_text(override.text or "", hint)
    except ValueError as error:
        problems.append(Problem(format_path(path), f"the value cannot be read: {error}"))
        return None
    set_value(tree, path, raw, problems, warnings, create=override.action != "" or not nested_config_classes(hint))
    return raw


def _remove(tree: Config, path: Path, problems: list[Problem]) -> None:
    found = find_parent(tree, path, problems)
    if found is None:
        return
    parent, _ = found
    if path[-1] not in dict(children(parent)):
        problems.append(no_such_key(tree, path))
    elif isinstance(parent, Config):
        advice = f"to switch it off, write {format_path(path)}=null if it can be null"
        problems.append(
            Problem(format_path(path), "this is a field and cannot be removed, only keys of tables can", hint=advice)
        )
    else:
        del parent[path[-1]]


def _word_place(word: str, kind: str) -> Place:
    shown = getattr(word, "flag", word).encode("utf-8", "replace").decode()  # a flag as it was typed
    return Place(kind, None, 1, len(shown), shown)
