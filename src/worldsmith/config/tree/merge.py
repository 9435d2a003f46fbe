"""Layers of plain data, one over the other, on the way to a tree: later ones win.

Sections and tables are merged, lists and single values replaced. The fields' types are known on the way, so each value
is checked where it was written, and a section that changes its class drops what was written for the old one.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, get_args, get_origin

from worldsmith.config.declare.class_tags import class_of, tag_of
from worldsmith.config.declare.configurable import Config, Configurable, field_hints, owner_of
from worldsmith.config.declare.value_types import mismatch, nested_config_classes, union_members
from worldsmith.config.errors import Place, Problem
from worldsmith.config.toml.positions import Span
from worldsmith.config.toml.schema import MISSING
from worldsmith.config.tree.access import ABSENT
from worldsmith.config.tree.paths import Path, format_path, starts_with
from worldsmith.config.tree.plain import TAG, plain, read_value
from worldsmith.config.tree.suggest import nearest_path
from worldsmith.config.yaml.text import Document, advice_on

TARGET, PARAMS = "target", "params"


class TreeMerge:
    """The data of a tree while layers are put on it. `problems`, `warnings` and `spans` tell what was found."""

    def __init__(self, data: dict[str, Any], known: list[Path]) -> None:
        self.data = data
        self.known = known
        """Paths that exist, for suggestions."""
        self.spans: dict[Path, Span] = {}
        self.leaves: dict[Path, Place] = {}
        """Where each value was written; sections and tables are not values, their class tags are."""
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.layer: dict[Path, Span] = {}

    def put(self, document: Document, root: type[Config]) -> None:
        """Puts one more layer on top."""
        self.layer = document.spans
        self.data = self.section([root], self.data, document.data, (), ())

    def section(self, classes: list[type], below: Any, above: dict[str, Any], path: Path, source: Path) -> Any:
        """A section's data: what was `below` with `above` on it. `source` is the path in the layer's file."""
        below = below if isinstance(below, dict) else {}
        old = self.class_below(below, classes)
        entries = self.unfold(above, old, path, source)
        if entries is None:
            return below or ABSENT
        merged, cls = dict(below), old
        if TAG in entries:
            cls = self.class_above(*entries[TAG], classes, path)
            if cls is None:
                return below or ABSENT
            if TAG in below and old is not None and cls is not old:
                self.drop(below, old, cls, path, entries[TAG][1])
                merged = {}
            merged[TAG] = tag_of(cls)
            self.note((*path, TAG), entries[TAG][1])
            self.leaves[(*path, TAG)] = self.place(entries[TAG][1])
        hints = field_hints(cls) if cls else {}
        for key, (value, origin) in entries.items():
            here = (*path, key)
            if key == TAG:
                continue
            if cls and key not in hints:
                self.unknown_key(here, cls, origin)
                continue
            known = merged.get(key, default_data(cls, key) if cls else ABSENT)
            found = self.value(hints.get(key, Any), known, value, here, origin)
            if found is not ABSENT:
                merged[key] = found
        return merged

    def value(self, hint: Any, below: Any, above: Any, path: Path, source: Path) -> Any:
        if above == MISSING and hint is not Any:
            return below
        self.note(path, source)
        members = union_members(hint)
        sections = nested_config_classes(hint)
        if isinstance(above, dict) and sections:
            return self.section(sections, below, above, path, source)
        if isinstance(above, dict) and (hint is Any or any(get_origin(member) is dict for member in members)):
            inner = next((get_args(member)[1] for member in members if get_origin(member) is dict), Any)
            return self.table(inner, below, above, path, source)
        self.forget(path)
        count = len(self.problems)
        if isinstance(above, list) and any(get_origin(member) is list for member in members):
            inner = next(get_args(member)[0] for member in members if get_origin(member) is list)
            above = [self.item(inner, item, (*path, i), (*source, i)) for i, item in enumerate(above)]
        elif hint is not Any:
            mistakes: list[Problem] = []
            advice = advice_on(above)
            above = read_value(above, hint, path, mistakes)
            place = self.place(source)
            self.problems += [dataclasses.replace(m, hint=m.hint or advice).at(place) for m in mistakes]
        if len(self.problems) > count:
            return below
        self.leaves[path] = self.place(source)
        return copy.deepcopy(above)

    def item(self, inner: Any, above: Any, path: Path, source: Path) -> Any:
        if above == MISSING:
            message = f"'{MISSING}' stands for a value that is missing, and a list has all its items"
            self.problems.append(Problem(format_path(path), message, place=self.place(source)))
        return self.value(inner, ABSENT, above, path, source)

    def table(self, inner: Any, below: Any, above: dict[str, Any], path: Path, source: Path) -> dict[str, Any]:
        merged = dict(below) if isinstance(below, dict) else {}
        for key, value in above.items():
            found = self.value(inner, merged.get(key, ABSENT), value, (*path, key), (*source, key))
            if found is not ABSENT:
                merged[key] = found
        return merged

    def unfold(
        self, above: dict[str, Any], cls: type[Config] | None, path: Path, source: Path
    ) -> dict[str, tuple[Any, Path]] | None:
        """Key -> value and where it stands. ``{target: X, params: {…}}`` is another spelling of ``{type: X, …}``."""
        fields = field_hints(cls) if cls else {}
        own = {key: (value, (*source, key)) for key, value in above.items()}
        node = [key for key in (TARGET, PARAMS) if key in above and key not in fields]
        if not node:
            return own
        others = [key for key in above if key not in (TARGET, PARAMS)]
        if others:
            where = format_path((*path, others[0]))
            message = f"beside '{node[0]}' a section takes only {TARGET} and {PARAMS}"
            advice = f"move '{others[0]}' into {PARAMS}, or write {TAG} and the fields without {PARAMS}"
            place = self.place((*source, others[0]))
            self.problems.append(Problem(where, message, hint=advice, place=place))
            return None
        params = above.get(PARAMS, {})
        if params is None:
            params = {}
        if not isinstance(params, dict):
            problem = mismatch((*path, PARAMS), "a table of the class's fields", params)
            self.problems.append(problem.at(self.place((*source, PARAMS))))
            return None
        tag = {TAG: (above[TARGET], (*source, TARGET))} if TARGET in above else {}
        return {**tag, **{key: (value, (*source, PARAMS, key)) for key, value in params.items()}}

    def class_below(self, below: dict[str, Any], classes: list[type]) -> type[Config] | None:
        """The class of the data so far; None if it is not known, or named wrongly in a section not looked into yet."""
        if TAG in below:
            try:
                return class_of(below[TAG])
            except ValueError:
                return None
        concrete = [cls for cls in classes if cls is not Configurable.Config]
        plain_section = len(concrete) == 1 and not issubclass(concrete[0], Configurable.Config)
        return concrete[0] if plain_section or (len(concrete) == 1 and owner_of(concrete[0])) else None

    def class_above(self, tag: Any, source: Path, classes: list[type], path: Path) -> type[Config] | None:
        """The class that a layer names; None, with a problem, if it cannot stand here."""
        where = format_path((*path, TAG))
        wanted = " or ".join(tag_of(cls) for cls in classes)
        place = self.place(source)
        try:
            cls = class_of(tag)
        except ValueError as error:
            self.problems.append(Problem(where, str(error), hint=f"this place takes {wanted}", place=place))
            return None
        if not issubclass(cls, tuple(classes)):
            problem = Problem(where, f"{tag} does not fit here", expected=wanted, found=tag_of(cls), place=place)
            self.problems.append(problem)
            return None
        return cls

    def drop(self, below: dict[str, Any], old: type[Config], cls: type[Config], path: Path, source: Path) -> None:
        lost = [key for key in below if key != TAG and not _same(below[key], default_data(old, key))]
        if lost:
            place = self.place(source)
            self.warnings.append(
                f"{place.file}:{place.line}: {format_path(path) or 'the root'} changes from {below[TAG]} to "
                f"{tag_of(cls)}; what was written for the former is dropped: {', '.join(lost)}"
            )
        self.forget(path)

    def unknown_key(self, path: Path, cls: type[Config], source: Path) -> None:
        siblings = [(*path[:-1], name) for name in field_hints(cls)]
        near = nearest_path(path, [*siblings, *self.known])
        listing = ", ".join(field_hints(cls)) or "no fields"
        advice = f"did you mean '{format_path(near)}'?" if near else f"it has: {listing}"
        span = self.layer.get(source)
        message = f"{cls.__qualname__} has no field '{path[-1]}'"
        self.problems.append(Problem(format_path(path), message, hint=advice, place=span.key if span else None))

    def place(self, source: Path) -> Place:
        """Where a value stands; the nearest thing above it if the layer has no place for it."""
        for length in range(len(source), 0, -1):
            if source[:length] in self.layer:
                return self.layer[source[:length]].value
        return Place(next((span.key.file for span in self.layer.values()), "the stack"))

    def note(self, path: Path, source: Path) -> None:
        if source in self.layer:
            self.spans[path] = self.layer[source]

    def forget(self, path: Path) -> None:
        """What was written below a path counts no more."""
        for known in [known for known in self.spans if len(known) > len(path) and starts_with(known, path)]:
            del self.spans[known]
        for known in [known for known in self.leaves if starts_with(known, path)]:
            del self.leaves[known]


def default_data(cls: type[Config], key: str) -> Any:
    """The default of a field as plain data, with its class named; `ABSENT` if it has none."""
    field = next(field for field in dataclasses.fields(cls) if field.name == key)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return ABSENT


def _same(value: Any, default: Any) -> bool:
    """Whether data says what the default says; a class that needs no naming may be named in one of them only."""
    if isinstance(value, dict) and isinstance(default, dict):
        keys = (value.keys() | default.keys()) - {TAG}
        tags_agree = TAG not in value or TAG not in default or value[TAG] == default[TAG]
        return tags_agree and all(_same(value.get(key, ABSENT), default.get(key, ABSENT)) for key in keys)
    return bool(value == default)
