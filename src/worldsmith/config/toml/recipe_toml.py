"""Reads a recipe TOML: a strict file that names a registered recipe and changes some of its values.

File → check against the schema → conversion of paths for the task → registered recipe → config → overrides → resolved
config. The mistakes of all stages are reported together.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from worldsmith.config.command_line.overrides import (
    RECIPE_WORDS,
    Override,
    is_missing,
    recipe_name,
    set_value,
    take_recipe,
)
from worldsmith.config.declare.configurable import ABSENT, OPAQUE, Config, field_names, find
from worldsmith.config.declare.value_types import fit, holds_sections, is_reference, mismatch
from worldsmith.config.errors import SHOWN, ConfigError, Place, Problem, locate
from worldsmith.config.recipes.registry import find_recipe, get_recipe, lineage, recipe_task
from worldsmith.config.text_file import MAX_DEPTH, read_config_text, too_deep
from worldsmith.config.toml.toml_schema import REFUSED, TASKS, TomlField, remap, toml_fields
from worldsmith.config.toml.toml_text import Span, find_positions, parse_toml
from worldsmith.config.tree.config_draft import Draft
from worldsmith.config.tree.paths import Path, flatten, format_path
from worldsmith.config.tree.plain import MISSING
from worldsmith.config.tree.suggest import did_you_mean_path
from worldsmith.config.write.values import WORD, write


def read_recipe_toml(path: str | PathLike[str], overrides: Sequence[Override]) -> tuple[Draft, list[Override]]:
    """Reads a recipe TOML file.

    Args:
        path: Path of the file.
        overrides: Parsed overrides; one of them may select another recipe.

    Returns:
        The unresolved config with the mistakes in the values of the file, and the overrides that remain to be applied:
        those that do not select the recipe.

    Raises:
        ConfigError: If the file cannot be read or is not valid TOML.
    """
    name = fspath(path)
    return read_recipe_text(read_config_text(name), name, overrides)


def read_recipe_text(text: str, name: str, overrides: Sequence[Override]) -> tuple[Draft, list[Override]]:
    """Reads a recipe TOML from a string, as `read_recipe_toml` does from a file.

    Args:
        text: TOML.
        name: File name for messages.
        overrides: Parsed overrides; one of them may select another recipe.

    Returns:
        The unresolved config with the mistakes in the values of the text, and the overrides that remain to be applied.

    Raises:
        ConfigError: If the text is not a valid recipe TOML.
    """
    table, spans = parse_toml(text, name), find_positions(text, name)
    for path, span in spans.items():
        if len(path) > MAX_DEPTH:  # `check_extent` does not add up header, dotted key and value
            raise ConfigError([too_deep(span.key)])
    if other := _other_system_problem(table):
        raise ConfigError(locate([other], {path: span.value for path, span in spans.items()}))
    loader = _DraftFiller(Draft(source=name), table, spans)
    loader.load(overrides)
    return loader.draft, take_recipe(overrides)[1]


def check_table(
    table: dict[str, Any], problems: list[Problem], tree: Config | None = None, task: str = TASKS[0]
) -> list[tuple[TomlField, Any]]:
    """Checks the keys and types of a parsed recipe TOML.

    Args:
        table: Parsed table, or one of its sections.
        problems: Receives a problem for each unknown key and each value of the wrong type.
        tree: Config of the recipe. If it has a value for an unknown key, the problem suggests an override that sets it.
        task: Task of the recipe, "vfm" or "vlm", on which the conversion of TOML paths depends.

    Returns:
        (key, value) for the known keys that are set and have the right type, in file order.
    """
    check = _Check({entry.path: entry for entry in toml_fields()}, problems, tree, task)
    check.section(table, ())
    return check.found


@dataclass(slots=True)
class _DraftFiller:
    """Sets the values of a recipe TOML in the config of its recipe, and collects the mistakes.

    Attributes:
        draft: Unresolved config, filled by `load`.
        table: Parsed file.
        spans: Source positions of the file, by path in the file.
        problems: Mistakes; the same list as that of the draft.
        keys: Position of each key of the file.
        values: Position of each value of the file.
    """

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
        """Sets the config of the draft to that of the selected recipe; if that fails, it adds the problems.

        Args:
            values: (key, value) of the file's `[job]` section; an alias of a recipe is replaced by its name, in place.
            overrides: Parsed overrides; ``experiment=`` selects another recipe than the file.

        Returns:
            Name of the recipe, also if it is not valid.
        """
        given = {entry.path: value for entry, value in values}
        name, place = given.get(("job", "experiment"), ""), self.values.get(("job", "experiment"))
        for override in overrides:
            if override.path in RECIPE_WORDS:
                name, place = recipe_name(override), override.place
        task = given.get(("job", "task"), "vfm")
        if is_reference(name) or is_reference(task):
            message = (
                "the recipe and the task are selected before references are resolved; write them without references"
            )
            self.problems.append(Problem("job.experiment", message, place=place))
            return str(name)
        if not name:
            if not any(problem.path == "job.experiment" for problem in self.problems):
                self.problems.append(self.located(_experiment_required()))
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
            message = f"the recipe '{name}' has task '{own}', but the file has task '{task}'"
            if ("job", "task") not in given:
                message = f"the recipe '{name}' has task '{own}', but the file has no task, which means '{task}'"
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
            text = f"this key sets '{format_path(target)}', which the config of the recipe does not have"
            advice = "remove the key, or choose a recipe that has it"
            place = span.key if span else self.values.get(source)
            mistakes.append(Problem(format_path(source), text, hint=advice, place=place))
        else:
            set_value(tree, target, value, mistakes)
        if mistakes:
            self.problems += locate(mistakes, self.draft.places)
            self.draft.broken.append(target)

    def note_places(self, target: Path, source: Path, value: Any) -> None:
        """Records the source position of a value and of each item of a list.

        Args:
            target: Path of the value in the config.
            source: Path of the value in the file.
            value: The value.
        """
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
        """Returns a problem with its position in the file: of the value if the value is wrong, else of its key."""
        wrong_value = problem.expected is not None
        return locate([problem], self.values if wrong_value else self.keys)[0].at(Place(self.draft.source))


@dataclass(slots=True)
class _Check:
    """Checks the keys and types of a parsed recipe TOML.

    `problems` receives the mistakes, and `found` receives (key, value) for each valid key.
    """

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
                pass  # unchanged
            elif here in REFUSED:
                self.problems.append(Problem(format_path(here), f"this key is not supported: {REFUSED[here]}"))
            else:
                self.problems.append(self.unknown(here, value))

    def value(self, entry: TomlField, value: Any) -> None:
        if value == MISSING:
            return
        count = len(self.problems)
        if holds_sections(entry.type):  # the config reader checks the sections
            if not isinstance(value, list):
                self.problems.append(
                    mismatch(entry.path, f"a list of sections, each [[{format_path(entry.path)}]]", value)
                )
        elif entry.path != (OPAQUE,):
            value = fit(value, entry.type, entry.path, self.problems)
        elif not isinstance(value, dict):  # nor a reference: it would not be resolved there
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
        advice = near or f"{where} accepts: {', '.join(siblings)}"
        if words := self.words(path, value):
            advice = f"a recipe TOML has no key for this config value; set it with an override: -- {' '.join(words)}"
        return Problem(format_path(path), message, hint=advice)

    def words(self, path: Path, value: Any) -> list[str]:
        """Returns overrides for a TOML key that is unknown in the recipe TOML but exists in the config of the recipe.

        The overrides are for a message and quoted for a shell. The result is empty if the config lacks the key too.

        Args:
            path: Path of the key in the file.
            value: Value of the key; a table results in one override per leaf.
        """
        leaves = flatten(value) if isinstance(value, dict) else [((), value)]
        words = []
        for rest, leaf in leaves:
            for target in ((*path, *rest), remap((*path, *rest), self.task)):
                if self.tree is not None and target and find(self.tree, target, ABSENT) is not ABSENT:
                    words.append(shlex.quote(f"{format_path(target)}={write(leaf, WORD)}"))
                    break
        return words


def _other_system_problem(table: dict[str, Any]) -> Problem | None:
    """Returns the problem of a parsed TOML that was written for torchtitan; None for every other file."""
    model, training = table.get("model"), table.get("training")
    if not (isinstance(model, dict) and isinstance(training, dict) and {"name", "flavor"} <= model.keys()):
        return None
    return Problem(
        "model.flavor",
        "this is a job config of torchtitan: expected a recipe TOML, whose [job].experiment names a recipe",
        hint="`worldsmith recipes` lists the recipes; for FLUX.1: `worldsmith config new --from flux_dev run.toml`"
        if model["name"] == "flux"
        else "text models are not supported; `worldsmith recipes` lists the supported models",
    )


def _experiment_required() -> Problem:
    return Problem(
        "job.experiment",
        "[job].experiment is required: it names the recipe that this file changes",
        hint='write experiment = "<recipe>" in [job]',
    )
