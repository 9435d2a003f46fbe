"""Finds the origin of every value of a loaded config: class default, recipe, file and line, flag, or override.

The loader only records which values a config format has set and where. All other origins are found here on demand, by
comparing the config with its recipe and with the class defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsmith.config.declare.configurable import ABSENT, OPAQUE, Config, children
from worldsmith.config.declare.value_types import is_reference
from worldsmith.config.errors import Place
from worldsmith.config.tree.paths import Path, format_path, starts_with
from worldsmith.config.tree.plain import class_defaults

COMMAND_LINE = ("override", "flag")
"""Values of `Origin.kind` for command-line arguments, also used as the `file` of their position."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a config value comes from.

    Attributes:
        line: 1-based line in the file; None if it is not known or the value is not from a file.
        reference: The value as written, if it contains a reference ``${…}``.
        leads_to: Description of the value to which the reference resolves, with its origin.
    """

    kind: str
    """One of "default", "recipe", "file", "override" and "flag"."""
    where: str = ""
    """Name of the recipe, path of the file, or the argument; "" for a default."""
    line: int | None = None
    reference: str | None = None
    leads_to: str | None = None

    def __str__(self) -> str:
        text = f"{self.kind} {self.where}".rstrip()
        if self.kind == "file":
            text = os.path.basename(self.where) + (f":{self.line}" if self.line is not None else "")
        if self.reference is not None:
            text += f": {self.reference}"
        return f"{text} <- {self.leads_to}" if self.leads_to else text


DEFAULT = Origin("default")
Provenance = Mapping[Path, Origin]


def trace(
    tree: Config,
    recipes: Sequence[tuple[str, Config]],
    places: Mapping[Path, Place],
    sources: Mapping[Path, Sequence[str | Path]],
) -> dict[Path, Origin]:
    """Returns the origin of every section, table, list and leaf of an unresolved config: path -> `Origin`.

    An origin is a class default, a recipe, or the file, flag or override that set the value. If a recipe sets a value
    that equals the default of the class, the origin is the default.

    Args:
        tree: Unresolved config.
        recipes: (name, config) of the recipes on which `tree` is based, oldest first; empty: `tree` has no recipe.
        places: Source positions, by path, of the values that files, flags and overrides set after the last recipe.
        sources: Steps by which each reference was resolved, by path of the reference: its text, then the paths or
            descriptions of the values to which it leads.
    """
    origins: dict[Path, Origin] = {}
    below: Config | None = None
    for name, recipe in recipes:
        origins = _Layer(below, origins, {}, Origin("recipe", name)).trace(recipe)
        below = recipe
    last = Origin("recipe", recipes[-1][0]) if recipes else DEFAULT
    origins = _Layer(below, origins, places, last).trace(tree)
    if getattr(tree, OPAQUE, None):
        origins[(OPAQUE,)] = last
        origins.update({path: from_place(place) for path, place in places.items() if path[0] == OPAQUE})
    return {
        path: _add_reference(origin, sources[path], origins) if path in sources else origin
        for path, origin in origins.items()
    }


def origin_of(provenance: Provenance, path: Path) -> Origin:
    """Returns the origin of a config value.

    If `provenance` has no origin for the value, it is that of the nearest section, table or list that contains the
    value; without one, it is the class default.

    Args:
        provenance: Result of `trace`.
        path: Path of the value.
    """
    for length in range(len(path), 0, -1):
        if path[:length] in provenance:
            return provenance[path[:length]]
    return DEFAULT


def remember(places: dict[Path, Place], path: Path, place: Place, value: Any = None) -> None:
    """Records in `places` that a config value was set at the source position `place`.

    For a dict, the position is recorded for each of its keys, also inside a list. For any other value, positions
    that were recorded before below `path` are removed.

    Args:
        places: Source positions by path; changed in place.
        path: Path of the value.
        place: Source position.
        value: The value.
    """
    for known in [known for known in places if len(known) > len(path) and starts_with(known, path)]:
        if not isinstance(value, dict):
            del places[known]
    if isinstance(value, dict) and value:
        for key, child in value.items():
            remember(places, (*path, str(key)), place, child)
    else:
        places[path] = place
    for index, item in enumerate(value) if isinstance(value, list) else ():
        if isinstance(item, dict):
            remember(places, (*path, index), place, item)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of a config's history, such as a recipe or the values that a file sets on top of it.

    Attributes:
        below: Config of the layer below; None for the lowest layer.
        origins: Origins of the values of `below`.
        places: Source positions of the values that this layer sets.
        writer: Origin of values that differ from `below` and have no source position.
    """

    below: Config | None
    origins: Mapping[Path, Origin]
    places: Mapping[Path, Place]
    writer: Origin

    def trace(self, tree: Config) -> dict[Path, Origin]:
        found: dict[Path, Origin] = {}
        below = self.below if self.below is not None else ABSENT
        self.visit((), tree, below, ABSENT, None, found)
        return found

    def visit(
        self, path: Path, node: Any, below: Any, default: Any, above: Origin | None, found: dict[Path, Origin]
    ) -> None:
        """Adds the origins of a value and of all values below it to `found`.

        Args:
            path: Path of the value.
            node: Value in this layer.
            below: Value in the layer below; ABSENT if there is no such value.
            default: Default of the class for the value; ABSENT without a default.
            above: Origin of the table or list that contains the value, if this layer sets it; else None.
            found: Receives the origins by path.
        """
        place = self.places.get(path)
        above = from_place(place) if place else above
        same = type(node) is type(below)
        if isinstance(node, Config):
            tag = self.places.get((*path, "type"))
            if path:
                unchanged = self.origins.get(path, DEFAULT) if same else None
                plain = DEFAULT if type(node) is type(default) else self.writer
                found[path] = from_place(tag) if tag else (unchanged or plain)
            known = dict(children(below)) if same else {}
            defaults = dict(children(default)) if type(node) is type(default) else class_defaults(type(node))
            for name, child in children(node):
                self.visit((*path, name), child, known.get(name, ABSENT), defaults.get(name, ABSENT), None, found)
            return
        if above:
            found[path] = above
        elif below is not ABSENT:
            found[path] = self.origins.get(path, DEFAULT) if same and node == below else self.writer
        else:
            found[path] = DEFAULT if type(node) is type(default) and node == default else self.writer
        known, defaults = dict(children(below)), dict(children(default))
        for key, child in children(node):
            self.visit((*path, key), child, known.get(key, ABSENT), defaults.get(key, ABSENT), above, found)


def from_place(place: Place) -> Origin:
    """Returns the origin of a value that was set at a source position (in a file or on the command line)."""
    if place.file in COMMAND_LINE:
        return Origin(place.file, place.source or "")
    return Origin("file", place.file, place.line)


def _add_reference(origin: Origin, steps: Iterable[str | Path], origins: Mapping[Path, Origin]) -> Origin:
    """Returns a copy of `origin` with the fields `reference` and `leads_to`, for a value that contains references.

    `leads_to` lists the values that the references name, separated by commas: a config path with the origin of its
    value, or a description. References in these values are not followed.

    Args:
        origin: Origin of a value with references `${…}`, without these two fields.
        steps: Steps of the resolution: the value as written, then the config path (tuple) or a description (text, such
            as the name of an environment variable) of each value that it names.
        origins: Origins of all values, by config path.
    """
    targets, written = [], ""
    for step in steps:
        if isinstance(step, tuple):
            targets.append(f"{format_path(step)} ({origin_of(origins, step)})")
        elif is_reference(step):
            written = step
        else:
            targets.append(step)
    return replace(origin, reference=written or None, leads_to=", ".join(targets) or None)
