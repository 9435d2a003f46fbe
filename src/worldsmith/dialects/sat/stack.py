"""Reads a SAT stack: YAML files merged in order, plus overrides, as values of the known keys with source positions."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worldsmith.config.command_line.overrides import Override, parse_overrides
from worldsmith.config.declare.configurable import ABSENT, find, walk
from worldsmith.config.declare.ranges import values_outside_range
from worldsmith.config.declare.value_types import fits, mismatch, wrong_type_problem
from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.paths import Path, forget_places, format_path, parse_path, starts_with
from worldsmith.config.tree.suggest import did_you_mean_path
from worldsmith.config.yaml.yaml_stack import merge_documents, set_override
from worldsmith.config.yaml.yaml_text import Document, advice_on, read_yaml
from worldsmith.dialects.sat.keys import KEYS, OPTIONAL, REQUIRED
from worldsmith.dialects.sat.targets import TARGETS, explain
from worldsmith.dialects.translation import ForeignSpec, KeyRule

SECTIONS = ("model", "data", "args", "deepspeed")
_PATHS = {parse_path(key) for key in KEYS}
_SECTION_PATHS = {path[:length] for path in _PATHS for length in range(1, len(path))}
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")
TRAINING = ("args.train_data",)
"""Required keys that only training reads."""
NOT_THERE = "the files do not have this key"
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


@dataclass(slots=True)
class SatStack(ForeignSpec):
    """Merged YAML config files of SAT after reading: their values, source positions and mistakes."""

    values: dict[str, Any] = field(default_factory=dict)
    """Value by key, for keys that the files or overrides set; null sections are omitted."""
    places: dict[str, Place] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    overridden: dict[str, Any] = field(default_factory=dict)
    """Values of files that overrides on the command line replaced, by key."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(KEYS)

    def get(self, key: str) -> Any:
        """Returns the value of a key; SAT's default if the files omit it.

        The value is None for a missing required key or an absent section, and True for a section that is
        stated.
        """
        if key not in KEYS:
            return self.is_stated(key) or None
        return self.values.get(key, self.default(key))

    def default(self, key: str) -> Any:
        """Returns the value that SAT uses for an omitted key; None for a required key."""
        default = KEYS[key].default
        return None if default is REQUIRED else copy.deepcopy(default)

    def is_stated(self, key: str) -> bool:
        return any(_is_at_or_below(stated, key) for stated in self.values)

    def is_broken(self, key: str) -> bool:
        return any(_is_at_or_below(bad, key) or _is_at_or_below(key, bad) for bad in self.broken)

    def place(self, key: str) -> Place:
        """Returns the file and line that set the key; for an omitted key, a `Place` that only names the key."""
        found = (place for stated, place in self.places.items() if _is_at_or_below(stated, key))
        return self.places.get(key) or next(found, Place(f"{self.source} (omitted: {key})"))

    def mistake(self, key: str, message: str, hint: str | None = None) -> None:
        """Adds a problem at a key, with the suggestion `hint`, and marks the key's value as invalid."""
        self.problems.append(Problem(key, message, hint=hint, place=self.place(key)))
        self.broken.append(key)


def read_stack(
    files: Sequence[str], words: Sequence[str], rules: tuple[KeyRule, ...], sections: Sequence[str] = SECTIONS
) -> SatStack:
    """Reads YAML config files of SAT, merges them in order, and applies overrides.

    Args:
        files: Paths of the files.
        words: Overrides of SAT's keys.
        rules: Rules that will translate the config.
        sections: Top-level sections that the files must have.

    Returns:
        The merged config, with all mistakes in `problems`.

    Raises:
        ConfigError: If a file cannot be read or does not hold a table.
    """
    documents = [read_yaml(read_config_text(file), file) for file in files]
    for file, document in zip(files, documents):
        if not isinstance(document.data, dict):
            raise ConfigError([mismatch((), "sections with their keys", document.data).at(Place(file))])
    stack = read_sat(", ".join(files), merge_documents(documents), words, rules, sections)
    stack.problems += find_type_conflicts(documents)
    return stack


def read_sat(
    source: str, merged: Document, words: Sequence[str], rules: tuple[KeyRule, ...], sections: Sequence[str] = SECTIONS
) -> SatStack:
    """Applies overrides to merged YAML config data of SAT and checks all keys and values.

    Args:
        source: Names of the files, for messages.
        merged: Merged data of the files with source positions; not modified.
        words: Overrides of SAT's keys; a path may contain the index of a list item.
        rules: Rules that will translate the config.
        sections: Top-level sections that the files must have.

    Returns:
        The config, with all mistakes in `problems`.
    """
    stack = SatStack(source, rules)
    document = Document(copy.deepcopy(merged.data), dict(merged.spans))
    for override in parse_overrides(words, stack.problems):
        _apply(document, override, stack)
    _follow_references(document, stack)
    for key in document.data:
        if key not in SECTIONS:
            hint = "the sections are model, data, args and deepspeed; SAT ignores all others without a message"
            _unknown(stack, document, (key,), hint)
    for name in SECTIONS:
        if isinstance(document.data.get(name), dict):
            _collect(stack, document, (name,), document.data[name])
        elif name in sections:
            stack.mistake(name, "the files have no such section", f"add the file that has {name}, with --base A B")
    _require_values(stack, sections)
    _check_targets(stack)
    _find_placeholders(stack)
    never_read = {key for rule in rules if rule.outside for key in rule.keys}
    stack.outside = {key: value for key, value in stack.values.items() if key in never_read}
    return stack


def find_type_conflicts(documents: Sequence[Document]) -> list[Problem]:
    """Returns a problem for each table that a later file replaces by a list, or vice versa.

    OmegaConf refuses such files as well.
    """
    problems = []
    for later in range(1, len(documents)):
        for path, value in _containers(documents[later].data, ()):
            before = [found for doc in documents[:later] if (found := find(doc.data, path, None)) is not None]
            if before and isinstance(before[-1], (dict, list)) and type(before[-1]) is not type(value):
                names = ("a table", "a list") if isinstance(value, dict) else ("a list", "a table")
                text = f"{names[0]} cannot replace {names[1]}"
                span = documents[later].spans.get(path)
                problems.append(Problem(format_path(path), text, place=span.key if span else None))
    return problems


def _containers(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yields (path, container) for all tables and lists in a value, recursively; paths begin with `path`."""
    if isinstance(value, (dict, list)) and path:
        yield path, value
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from _containers(item, (*path, key))


def _is_at_or_below(key: str, above: str) -> bool:
    above = above.rstrip(".")
    return key == above or key.startswith((f"{above}.", f"{above}["))


def _apply(document: Document, override: Override, stack: SatStack) -> None:
    """Sets or removes the value of one override in `document`; mistakes are added to `stack`.

    Digits in the path of an override are list indices, as in OmegaConf.
    """
    parent, path = _walk(document.data, override.path, create=override.action != "~")
    shown = format_path(path)
    names: Any = range(len(parent)) if isinstance(parent, list) else parent or ()
    there = path[-1] in names
    if parent is None or (isinstance(parent, list) and not there) or (override.action == "~" and not there):
        text = f"the list has {len(parent)} items, numbered from 0" if isinstance(parent, list) else NOT_THERE
        stack.problems.append(Problem(shown, text, place=override.place))
        return
    if override.action == "~":
        del parent[path[-1]]
        forget_places(document.spans, path)
        return
    before = parent[path[-1]] if there else ABSENT
    hint = KEYS[shown].plain if shown in KEYS else Any
    is_set = set_override(document, parent, path, override, hint, stack.problems)
    if is_set and before not in (ABSENT, parent[path[-1]]) and not isinstance(before, (dict, list)):
        stack.overridden[shown] = before


def _walk(data: Any, path: Path, *, create: bool) -> tuple[Any, Path]:
    """Follows a path through nested tables and lists.

    Args:
        data: Nested plain data; modified only with `create`.
        path: Path of a value; list indices may be digits in a string.
        create: Whether missing tables are added.

    Returns:
        The container of the last path component (None if it does not exist), and the path with integer indices.
    """
    node, found = data, list(path)
    for index, part in enumerate(path):
        if isinstance(node, list) and str(part).isdecimal():
            found[index] = int(part)
        if index == len(path) - 1:
            break
        if isinstance(node, dict) and create and node.get(part) is None:
            node[part] = {}
        node = find(node, (found[index],))
        if not isinstance(node, (dict, list)):
            return None, tuple(found)
    return node, tuple(found)


def _follow_references(document: Document, stack: SatStack) -> None:
    """Replaces references ``${a.b}`` in `document` by the values of the keys that they name, in place.

    A reference within a longer string, or to a missing key or a section, becomes a problem of `stack`.
    """
    for path, value in list(walk(document.data)):
        if not isinstance(value, str) or "${" not in value:
            continue
        match = _REFERENCE.fullmatch(value.strip())
        found = find(document.data, parse_path(match[1]), ABSENT) if match else ABSENT
        if found is ABSENT or isinstance(found, (dict, list)) or "${" in str(found):
            span = document.spans.get(path)
            text = "a reference must be a complete value that names another key, such as ${args.seed}"
            problem = Problem(format_path(path), text, hint="write the value", place=span.value if span else None)
            stack.problems.append(problem)
            stack.broken.append(format_path(path))
        else:
            find(document.data, path[:-1])[path[-1]] = found


def _collect(stack: SatStack, document: Document, path: Path, value: Any) -> None:
    """Stores the known keys in `value`, recursively, in `stack`; unknown keys become problems.

    `value` is the content of `document` at `path`.
    """
    if path in _PATHS:
        _take(stack, document, path, value)
    elif path not in _SECTION_PATHS:
        _unknown(stack, document, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(stack, document, (*path, key), item)
    elif isinstance(value, list) and any(starts_with(known, (*path, 0)) for known in _SECTION_PATHS):
        for number, item in enumerate(value):
            _collect(stack, document, (*path, number), item)
    elif value is not None:
        stack.places[format_path(path)] = _place(stack, document, path)
        stack.mistake(format_path(path), "expected a section (a table of its keys)", f"found {value!r}")


def _take(stack: SatStack, document: Document, path: Path, value: Any) -> None:
    """Stores the value of the known key at `path` in `stack`; a wrong type or value out of range becomes a problem."""
    name = format_path(path)
    key = KEYS[name]
    stack.places[name] = _place(stack, document, path)
    if not fits(value, key.plain):
        problem = wrong_type_problem(path, key.plain, value)
        stack.problems.append(replace(problem, hint=advice_on(value) or problem.hint, place=stack.places[name]))
        stack.broken.append(name)
        return
    for where, limits, found in values_outside_range(value, key.hint, path):
        stack.problems.append(
            Problem(format_path(where), "", expected=str(limits), found=str(found), place=stack.places[name])
        )
        stack.broken.append(name)
    stack.values[name] = value


def _place(stack: SatStack, document: Document, path: Path) -> Place:
    span = document.spans.get(path)
    return span.value if span else Place(stack.source)


def _unknown(stack: SatStack, document: Document, path: Path, hint: str | None = None) -> None:
    near = did_you_mean_path(path, [*_PATHS, *_SECTION_PATHS])
    siblings = ", ".join(dict.fromkeys(str(p[len(path) - 1]) for p in _PATHS if p[: len(path) - 1] == path[:-1]))
    name = format_path(path)
    stack.places[name] = _place(stack, document, path)
    advice = near or hint or f"{format_path(path[:-1])} accepts: {siblings}"
    stack.mistake(name, "SAT has no such key, and would ignore it without a message", advice)


def _require_values(stack: SatStack, sections: Sequence[str]) -> None:
    """Adds a problem to `stack` for each missing required value in `sections`.

    If `sections` are not all sections, the config is one for sampling, and keys that only training needs may be
    missing. So may the keys of optional components that the config does not have.
    """
    for name, key in KEYS.items():
        if name.partition(".")[0] not in sections or (name in TRAINING and sections != SECTIONS):
            continue
        component = next((prefix for prefix in OPTIONAL if name.startswith(prefix)), None)
        needed = key.default is REQUIRED or (component is not None and name == f"{component}target")
        if needed and component is not None and not stack.is_stated(component):
            continue
        if needed and stack.values.get(name) is None and not stack.is_broken(name):
            stack.mistake(name, "the value is missing", f"set it, or add {name}=VALUE")


def _check_targets(stack: SatStack) -> None:
    """Adds a problem to `stack` for each `target` (class name of a component) that is not supported."""
    for component, names in TARGETS.items():
        key = f"{component}target"
        target = stack.values.get(key)
        if target is not None and target not in names:
            stack.mistake(key, *explain(component, target))


def _find_placeholders(stack: SatStack) -> None:
    """Adds a problem to `stack` for each string value with a ``{…}`` placeholder that the user must replace."""
    for key, value in stack.values.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (found := _PLACEHOLDER.search(text)):
                stack.mistake(key, f"{found[0]} is a placeholder for your own path", f"{key}=PATH")
