"""The recipe TOML: a strict file that picks a registered recipe and changes some of its values.

File -> schema -> per-task remap -> registered recipe -> tree -> tail overrides -> resolved tree. All mistakes of all
stages are reported together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from worldsmith.config.declare.configurable import Config, field_names
from worldsmith.config.declare.value_types import is_reference
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.recipes.registry import find_recipe, get_recipe, lineage
from worldsmith.config.text_file import MAX_DEPTH, read_config_text, too_deep
from worldsmith.config.toml.check import check_table, parse_toml
from worldsmith.config.toml.positions import Span, find_positions
from worldsmith.config.toml.schema import TASKS, TomlField, remap
from worldsmith.config.toml.words import experiment_required, other_system_problem
from worldsmith.config.tree.draft import Draft, recipe_task
from worldsmith.config.tree.paths import Path, flatten, format_path
from worldsmith.config.tree.plain import OPAQUE
from worldsmith.config.words.overrides import (
    RECIPE_WORDS,
    Override,
    is_missing,
    recipe_name,
    set_value,
    take_recipe,
)


def read_recipe_toml(path: str | PathLike[str], overrides: Sequence[Override]) -> tuple[Draft, list[Override]]:
    """The draft of a recipe TOML, and the overrides that are left to be applied: without those that chose the recipe.

    Raises ConfigError for a text that is no TOML; mistakes in what it says are in the draft.
    """
    name = fspath(path)
    return read_recipe_text(read_config_text(name), name, overrides)


def read_recipe_text(text: str, name: str, overrides: Sequence[Override]) -> tuple[Draft, list[Override]]:
    """`read_recipe_toml` for text that is at hand; `name` is what its mistakes call the file."""
    table, spans = parse_toml(text, name), find_positions(text, name)
    for path, span in spans.items():
        if len(path) > MAX_DEPTH:  # of a header, a dotted key and a value together
            raise ConfigError([too_deep(span.key)])
    if other := other_system_problem(table):
        raise ConfigError(locate([other], {path: span.value for path, span in spans.items()}))
    loader = _Loader(Draft(source=name), table, spans)
    loader.load(overrides)
    return loader.draft, take_recipe(overrides)[1]


@dataclass(slots=True)
class _Loader:
    """One read of one file; collects mistakes on the way."""

    draft: Draft
    table: dict[str, Any]
    spans: dict[Path, Span]
    problems: list[Problem] = field(init=False)
    keys: dict[Path, Place] = field(init=False)
    values: dict[Path, Place] = field(init=False)

    def __post_init__(self) -> None:
        self.problems = self.draft.problems
        self.keys = {path: span.key for path, span in self.spans.items()}
        self.values = {path: span.value for path, span in self.spans.items()}

    def load(self, overrides: Sequence[Override]) -> None:
        mistakes: list[Problem] = []
        rest = dict(self.table)
        job = {"job": rest.pop("job")} if "job" in rest else {}
        values = check_table(job, mistakes)
        self.problems += [self.located(mistake) for mistake in mistakes]
        name = self.start(values, overrides)
        late: list[Problem] = []
        values += check_table(rest, late, self.draft.tree, self.draft.task or TASKS[0])
        mistakes += late
        self.problems += [self.located(mistake) for mistake in late]
        if self.draft.tree is None or self.draft.task is None:
            return
        self.draft.recipes = lambda: lineage(name)
        self.draft.place = Place(f"recipe '{name}'")
        names = [tuple(key for key in mistake.keys if isinstance(key, str)) for mistake in mistakes]
        self.draft.broken += [remap(path, self.draft.task) or () for path in names if path]
        self.fill(self.draft.tree, values, self.draft.task)

    def start(self, values: list[tuple[TomlField, Any]], overrides: Sequence[Override]) -> str:
        """Puts a fresh tree of the recipe that the file, or an ``experiment=`` word, names into the draft."""
        given = {entry.path: value for entry, value in values}
        name, place = given.get(("job", "experiment"), ""), self.values.get(("job", "experiment"))
        for override in overrides:
            if override.path in RECIPE_WORDS:
                name, place = recipe_name(override), override.place
        task = given.get(("job", "task"), "vfm")
        if is_reference(name) or is_reference(task):
            message = "the recipe and the task are chosen before references are resolved; write them out"
            self.problems.append(Problem("job.experiment", message, place=place))
            return str(name)
        if not name:
            if not any(problem.path == "job.experiment" for problem in self.problems):
                self.problems.append(self.located(experiment_required()))
            return str(name)
        try:
            tree, name = get_recipe(name), find_recipe(name).name
        except ConfigError as error:
            self.problems += [
                Problem("job.experiment", problem.message, hint=problem.hint, place=place) for problem in error.problems
            ]
            return str(name)
        own = recipe_task(tree) or task
        if own != task and not any(problem.path == "job.task" for problem in self.problems):
            message = f"the recipe '{name}' has task '{own}', the file says '{task}'"
            if ("job", "task") not in given:
                message = f"the recipe '{name}' has task '{own}', and a file without a task means '{task}'"
            found = self.values.get(("job", "task")) or place
            self.problems.append(Problem("job.task", message, hint=f'write task = "{own}" in [job]', place=found))
        values[:] = [(entry, name if entry.path == ("job", "experiment") else value) for entry, value in values]
        self.draft.tree, self.draft.task = tree, own
        return str(name)

    def fill(self, tree: Config, values: list[tuple[TomlField, Any]], task: str) -> None:
        for entry, value in values:
            if entry.path == (OPAQUE,):
                if OPAQUE in field_names(type(tree)):
                    setattr(tree, OPAQUE, value)
                    own = {path: span.value for path, span in self.spans.items() if path[0] == OPAQUE}
                    self.draft.places.update(own)
                continue
            target = remap(entry.path, task)
            if entry.path == ("job", "task"):
                self.note_places(entry.path, entry.path, value)
                continue
            if target is None:
                place = self.values.get(entry.path)
                where = f"{self.draft.source}:{place.line}: " if place else ""
                self.draft.warnings.append(f"{where}{format_path(entry.path)} has no effect for task '{task}'")
                continue
            leaves = flatten(value) if isinstance(value, dict) and value else [((), value)]
            if value == {}:
                continue
            for rest, leaf in leaves:
                self.set_leaf(tree, (*target, *rest), (*entry.path, *rest), leaf)

    def set_leaf(self, tree: Config, target: Path, source: Path, value: Any) -> None:
        self.note_places(target, source, value)
        mistakes: list[Problem] = []
        if is_missing(tree, target):
            span = self.spans.get(source)
            text = f"the recipe has no '{format_path(target)}', where this key would go"
            advice = "remove the key, or choose a recipe that has it"
            place = span.key if span else self.values.get(source)
            mistakes.append(Problem(format_path(source), text, hint=advice, place=place))
        else:
            set_value(tree, target, value, mistakes)
        self.problems += locate(mistakes, self.draft.places)
        if mistakes:
            self.draft.broken.append(target)

    def note_places(self, target: Path, source: Path, value: Any) -> None:
        """Remembers where a value, and each item of a list, was written."""
        places = self.draft.places
        if place := self.values.get(source):
            places[target] = place
        for index in range(len(value) if isinstance(value, list) else 0):
            if item := self.values.get((*source, index)):
                places[(*target, index)] = item
            if isinstance(value[index], dict):
                for rest, leaf in flatten(value[index]):
                    self.note_places((*target, index, *rest), (*source, index, *rest), leaf)

    def located(self, problem: Problem) -> Problem:
        """Places a problem of the schema: at the value for a wrong value, at the key for a wrong key."""
        wrong_value = problem.expected is not None
        return locate([problem], self.values if wrong_value else self.keys)[0].at(Place(self.draft.source))
