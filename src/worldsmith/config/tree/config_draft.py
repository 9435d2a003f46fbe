"""A config while it is read, and the final steps that all config formats share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from worldsmith.config.command_line.overrides import Override, apply_overrides
from worldsmith.config.declare.configurable import ABSENT, Config
from worldsmith.config.errors import ConfigError, Place, Problem, locate
from worldsmith.config.recipes.registry import variables_of
from worldsmith.config.tree.checks import alternatives, list_warnings
from worldsmith.config.tree.difference import find_changes, find_differences
from worldsmith.config.tree.paths import Path, format_path, parse_path, starts_with
from worldsmith.config.tree.provenance import Provenance, remember, trace
from worldsmith.config.tree.references import VARIABLE, Kept, try_resolve

Recipes = list[tuple[str, Config]]


@dataclass(slots=True)
class Draft:
    """An unresolved config with the source positions of its values and the mistakes so far.

    The reader of every config format returns a draft; `finish` applies overrides to it, resolves and checks it.

    Attributes:
        source: Name of the config for messages, such as the file.
        tree: The config; None if mistakes prevent building it.
        recipes: Returns (name, config) of the recipes on which the config is based, oldest first.
        task: `job.task` of the config; None without a task.
        places: Source positions of values, by path.
        problems: Mistakes so far.
        warnings: Warnings so far.
        broken: Paths that could not be set.
    """

    source: str
    tree: Any = None
    recipes: Callable[[], Recipes] = list
    task: str | None = None
    places: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    broken: list[Path] = field(default_factory=list)
    place: Place | None = None
    """Position for mistakes in values that have no position of their own, such as those of the recipe."""
    report: str = ""
    """Report on how each key of another system's spec was translated; "" for other sources."""


@dataclass(frozen=True)
class Loaded:
    """A resolved config, its warnings, and where its values come from.

    Attributes:
        tree: The resolved config.
        warnings: Warnings for the user.
        source: Name of the config for messages, such as the file.
        places: Source positions of the values that were set after the recipe, by path.
        sources: Steps by which each reference was resolved, by path of the reference: its text, then the paths or
            descriptions of the values to which it leads.
        recipes: Returns (name, config) of the recipes on which the config is based, oldest first.
        now: Time that ``${now:…}`` stands for.
    """

    tree: Any
    warnings: list[str] = field(default_factory=list)
    raw: Any = None
    """The config with unresolved references."""
    source: str = ""
    places: dict[Path, Place] = field(default_factory=dict, repr=False)
    sources: dict[Path, list[str | Path]] = field(default_factory=dict, repr=False)
    recipes: Callable[[], Recipes] = field(default=list, repr=False, compare=False)
    now: datetime = field(default_factory=datetime.now, repr=False, compare=False)
    report: str = field(default="", repr=False, compare=False)
    """Report on how each key of another system's spec was translated; "" for other sources."""

    @cached_property
    def provenance(self) -> Provenance:
        """Origin of every section, table, list and leaf, by path. Computed on first access."""
        return trace(self.raw, self.recipes(), self.places, self.sources)

    @property
    def variables(self) -> dict[Path, str]:
        """Name of the environment variable from which a value comes, by path; other values have no entry."""
        found = {path: self._variable(path) for path in self.sources}
        return {path: name for path, name in found.items() if name is not None}

    def _variable(self, path: Path) -> str | None:
        for step in self.sources.get(path, []):
            if not isinstance(step, str):
                name = self._variable(step)
            else:
                name = step.removeprefix(VARIABLE) if step.startswith(VARIABLE) else None
            if name is not None:
                return name
        return None

    @cached_property
    def changed(self) -> set[Path]:
        """Paths of the leaves that differ from the recipe; without a recipe, from the defaults of the classes."""
        if self.base is None:
            return {path for path, origin in self.provenance.items() if origin.kind != "default"}
        found = find_differences(self.base, self.tree, custom=True)
        return {change.path for change in found if change.new is not ABSENT}

    @cached_property
    def removed(self) -> list[Path]:
        """Paths of table keys that the recipe has and this config does not have."""
        return [c.path for c in find_changes(self.base, self.tree) if c.new is ABSENT] if self.base else []

    @cached_property
    def base(self) -> Any:
        """Resolved config of the recipe on which this config is based; None without a recipe."""
        recipes = self.recipes()
        return try_resolve(recipes[-1][1], now=self.now, keep_unset=True)[0] if recipes else None


def finish(draft: Draft, overrides: Sequence[Override] = (), *, keep_unset: Kept = False) -> Loaded:
    """Applies overrides to an unresolved config, resolves references and runs all checks.

    Args:
        draft: Result of the reader of a config format; its config is modified.
        overrides: Overrides and flags of the command line.
        keep_unset: Treatment of references to unset environment variables. False: errors; True: they stay references;
            "names": replaced by $NAME in string fields, errors elsewhere.

    Returns:
        The resolved config.

    Raises:
        ConfigError: With the mistakes of all stages.
    """
    if draft.tree is None:
        raise ConfigError(draft.problems)
    apply_overrides(
        draft.tree, overrides, draft.problems, draft.warnings, draft.task, places=draft.places, broken=draft.broken
    )
    clear_overridden_alternatives(draft)
    now = datetime.now()
    sources: dict[Path, list[str | Path]] = {}
    resolved, late = try_resolve(
        draft.tree,
        now=now,
        broken=draft.broken,
        sources=sources,
        keep_unset=keep_unset,
        variables=lambda: variables_of(name for name, _ in draft.recipes()),
    )
    late = [_move_to_source(problem, draft.places, sources) for problem in late]
    draft.problems += [problem.at(draft.place) for problem in locate(late, draft.places)]
    if draft.problems:
        raise ConfigError(draft.problems, resolved, draft.places)
    warnings = [*draft.warnings, *list_warnings(resolved)]
    return Loaded(resolved, warnings, draft.tree, draft.source, draft.places, sources, draft.recipes, now, draft.report)


def _move_to_source(problem: Problem, places: dict[Path, Place], sources: dict[Path, list[str | Path]]) -> Problem:
    """Moves a problem about the result of a reference to the position of the value to which the reference leads.

    Args:
        problem: Problem of a check.
        places: Known source positions by path.
        sources: Steps by which each reference was resolved, by path of the reference: its text, then the paths or
            descriptions of the values to which it leads.

    Returns:
        The problem with a position and a hint that names the reference; unchanged for a value without a reference.
    """
    for concern in map(parse_path, problem.concerns):
        if problem.place or any(starts_with(path, concern) for path in places):
            break
        for path, steps in sources.items():
            written = next((step for step in steps if isinstance(step, tuple) and step in places), None)
            if starts_with(path, concern) and written and isinstance(written, tuple):
                explanation = f"{format_path(path)} is {steps[0]}"
                return replace(
                    problem.at(places[written]), hint=f"{problem.hint}; {explanation}" if problem.hint else explanation
                )
    return problem


def clear_overridden_alternatives(draft: Draft) -> None:
    """Sets config fields to None, in place, if a later layer sets an alternative to them; adds a warning for each.

    The layers are, from first to last: recipe, file, flags, overrides. Of alternative fields only one may be set. For
    example, if a recipe sets one kind of limit and a TOML file another kind, that of the recipe is cleared, since TOML
    has no null. Two alternatives that the same layer sets stay, and are reported as a contradiction.
    """
    for path, section, given in alternatives(draft.tree):
        layers = {name: _layer_rank(draft.places.get((*path, name))) for name in given}
        chosen = [name for name in given if layers[name] == max(layers.values()) > 0]
        for name in given if len(chosen) == 1 else ():
            if name == chosen[0]:
                continue
            was = f"{format_path((*path, name))} = {getattr(section, name)}"
            draft.warnings.append(f"{was} is dropped, because {chosen[0]} is set")
            setattr(section, name, None)
            remember(draft.places, (*path, name), draft.places[(*path, chosen[0])])


def _layer_rank(place: Place | None) -> int:
    """Returns the priority of the layer that set a value: 0 recipe, 1 file, 2 flag, 3 override."""
    return 0 if place is None else {"flag": 2, "override": 3}.get(place.file, 1)
