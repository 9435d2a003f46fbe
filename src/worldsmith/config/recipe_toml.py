"""The recipe TOML: a strict file that picks a registered recipe and changes some of its values.

File -> schema -> per-task remap -> registered recipe -> tree -> tail overrides -> resolved tree. All mistakes of all
stages are reported together.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from worldsmith.config.configurable import Config, field_names
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.overrides import (
    Override,
    apply_overrides,
    find_node,
    is_missing,
    parse_overrides,
    set_value,
)
from worldsmith.config.paths import Path, flatten, format_path, parse_path
from worldsmith.config.references import try_resolve
from worldsmith.config.registry import get_recipe
from worldsmith.config.suggest import nearest_path
from worldsmith.config.text_file import read_config_text
from worldsmith.config.toml_positions import Span, find_positions
from worldsmith.config.toml_schema import FIELDS, MISSING, REFUSED, TASKS, TomlField, remap
from worldsmith.config.tree import OPAQUE
from worldsmith.config.value_types import fit, is_reference, mismatch

_FIELDS = {entry.path: entry for entry in FIELDS}
_SECTIONS = {entry.path[:length] for entry in FIELDS for length in range(len(entry.path))}
_SELECTORS = {("job", "task"), ("job", "experiment")}
_RECIPE_WORDS = {("experiment",), ("job", "experiment")}


def load_recipe_toml(
    path: str | PathLike[str], tail: Sequence[str] = (), *, warnings: list[str] | None = None
) -> Config:
    """The resolved tree of a recipe TOML and its tail overrides.

    Keys without effect for the file's task are added to `warnings`, or printed to stderr if that is None.
    Raises ConfigError with every mistake.
    """
    name = fspath(path)
    text = read_config_text(name)
    notes: list[str] = []
    loader = _Loader(name, parse_toml(text, name), find_positions(text, name), tail, notes)
    tree: Config
    tree, problems = loader.load()
    if problems:
        raise ConfigError(problems)
    if warnings is not None:
        warnings.extend(notes)
    else:
        for note in notes:
            print(f"warning: {note}", file=sys.stderr)
    return tree


def build_overrides(table: dict[str, Any]) -> list[str]:
    """The override words of a parsed recipe TOML: ``--``, ``experiment=<name>``, then its leaves in file order.

    The words are for people and launch scripts; `load_recipe_toml` fills the tree from the typed values. Raises
    ConfigError if the experiment is missing or the task unknown.
    """
    job = table.get("job", {})
    experiment = job.get("experiment", "") if isinstance(job, dict) else ""
    if not experiment:
        raise ConfigError([_experiment_required()])
    task = job.get("task", "vfm")
    if task not in TASKS:
        raise ConfigError([mismatch(("job", "task"), f"one of {list(TASKS)}", task)])
    words = ["--", f"experiment={experiment}"]
    for section, content in table.items():
        if section == OPAQUE:
            continue
        if section == "job":
            content = {key: value for key, value in job.items() if (section, key) not in _SELECTORS}
        for path, value in flatten({section: content}):
            target = remap(tuple(str(part) for part in path), task)
            if target is not None and value != MISSING:
                words.append(f"{format_path(target)}={format_value(value)}")
    return words


def format_value(value: Any, *, in_list: bool = False) -> str:
    """A value in an override word: text is quoted in lists, and elsewhere only if it holds a comma or a space."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(format_value(item, in_list=True) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{format_value(item, in_list=True)}' for key, item in value.items())}}}"
    if isinstance(value, str) and (in_list or "," in value or " " in value):
        return f"'{value}'"
    return str(value)


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
            fitted = value if key == OPAQUE and isinstance(value, dict) else fit(value, entry.type, here, problems)
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


def _experiment_required() -> Problem:
    return Problem(
        "job.experiment",
        "[job].experiment is required: it names the recipe that this file changes",
        hint='write experiment = "<recipe>" in [job]',
    )


@dataclass(slots=True)
class _Loader:
    """One load of one file; collects mistakes on the way."""

    file: str
    table: dict[str, Any]
    spans: dict[Path, Span]
    tail: Sequence[str]
    warnings: list[str]
    problems: list[Problem] = field(default_factory=list)
    places: dict[Path, Place] = field(default_factory=dict)
    broken: list[Path] = field(default_factory=list)

    def load(self) -> tuple[Any, list[Problem]]:
        mistakes: list[Problem] = []
        values = check_table(self.table, mistakes)
        self.problems += [self.located(mistake) for mistake in mistakes]
        overrides = parse_overrides(self.tail, self.problems)
        task, tree = self.start(values, overrides)
        if tree is None:
            return None, self.problems
        self.broken = [self.target(mistake.path, task) for mistake in mistakes]
        self.fill(tree, values, task)
        rest = [override for override in overrides if override.path not in _RECIPE_WORDS]
        count = len(self.problems)
        self.places.update(apply_overrides(tree, rest, self.problems, self.warnings, task))
        self.broken += [self.target(problem.path, task) for problem in self.problems[count:]]
        resolved, late = try_resolve(tree, broken=self.broken)
        recipe = Place(f"recipe '{getattr(find_node(tree, ('job',)), 'experiment', '')}'")
        self.problems += [problem.at(recipe) for problem in locate(late, self.places)]
        return resolved, self.problems

    def start(self, values: list[tuple[TomlField, Any]], overrides: list[Override]) -> tuple[str, Config | None]:
        """The task and a fresh tree of the recipe that the file, or an ``experiment=`` word, names."""
        given = {entry.path: value for entry, value in values}
        name, place = given.get(("job", "experiment"), ""), self.value_place(("job", "experiment"))
        for override in overrides:
            if override.path in _RECIPE_WORDS:
                name, place = (override.text or "").strip("'\" "), override.place
                for index, (entry, _) in enumerate(values):
                    if entry.path == ("job", "experiment"):
                        values[index] = (entry, name)
        task = given.get(("job", "task"), "vfm")
        if is_reference(name) or is_reference(task):
            message = "the recipe and the task are chosen before references are resolved; write them out"
            self.problems.append(Problem("job.experiment", message, place=place))
            return "vfm", None
        if not name:
            if not any(problem.path == "job.experiment" for problem in self.problems):
                self.problems.append(self.located(_experiment_required()))
            return task, None
        try:
            tree = get_recipe(name)
        except ConfigError as error:
            self.problems += [
                Problem("job.experiment", problem.message, hint=problem.hint, place=place) for problem in error.problems
            ]
            return task, None
        own = getattr(find_node(tree, ("job",)), "task", task)
        if own != task and not any(problem.path == "job.task" for problem in self.problems):
            message = f"the recipe '{name}' has task '{own}', the file says '{task}'"
            if ("job", "task") not in given:
                message = f"the recipe '{name}' has task '{own}', and a file without a task means '{task}'"
            found = self.value_place(("job", "task")) or place
            self.problems.append(Problem("job.task", message, hint=f'write task = "{own}" in [job]', place=found))
        return own, tree

    def fill(self, tree: Config, values: list[tuple[TomlField, Any]], task: str) -> None:
        for entry, value in values:
            if entry.path == (OPAQUE,):
                if OPAQUE in field_names(type(tree)):
                    setattr(tree, OPAQUE, value)
                continue
            if entry.path == ("job", "task"):
                continue
            target = remap(entry.path, task)
            if target is None:
                place = self.value_place(entry.path)
                where = f"{self.file}:{place.line}: " if place else ""
                self.warnings.append(f"{where}{format_path(entry.path)} has no effect for task '{task}'")
                continue
            leaves = flatten(value) if isinstance(value, dict) and value else [((), value)]
            if value == {}:
                continue
            for rest, leaf in leaves:
                self.set_leaf(tree, (*target, *rest), (*entry.path, *rest), leaf)

    def set_leaf(self, tree: Config, target: Path, source: Path, value: Any) -> None:
        place = self.value_place(source)
        if place:
            self.places[target] = place
        for index in range(len(value) if isinstance(value, list) else 0):
            item = self.value_place((*source, index))
            if item:
                self.places[(*target, index)] = item
        mistakes: list[Problem] = []
        if is_missing(tree, target):
            span = self.spans.get(source)
            text = f"the recipe has no '{format_path(target)}', where this key would go"
            advice = "remove the key, or choose a recipe that has it"
            mistakes.append(Problem(format_path(source), text, hint=advice, place=span.key if span else place))
        else:
            set_value(tree, target, value, mistakes)
        self.problems += locate(mistakes, self.places)
        if mistakes:
            self.broken.append(target)

    def target(self, path: str, task: str) -> Path:
        parts = parse_path(path) if path else ()
        names = tuple(part for part in parts if isinstance(part, str))
        return remap(names, task) or () if names else ()

    def value_place(self, path: Path) -> Place | None:
        span = self.spans.get(path)
        return span.value if span else None

    def located(self, problem: Problem) -> Problem:
        """Places a problem of the schema: at the value for a wrong value, at the key for a wrong key."""
        wrong_value = problem.expected is not None
        return locate([problem], {path: s.value if wrong_value else s.key for path, s in self.spans.items()})[0].at(
            Place(self.file)
        )
