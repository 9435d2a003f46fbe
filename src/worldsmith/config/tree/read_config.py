"""Converts plain data to a config, or applies it to one: all files, overrides and flags become sections here.

``from_dict(to_dict(c)) == c``, through YAML and JSON text too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from inspect import isabstract
from typing import Any, TypeVar, get_origin

from worldsmith.config.declare.class_tags import class_of, tag_of
from worldsmith.config.declare.configurable import (
    OPAQUE,
    Config,
    Configurable,
    children,
    field_hints,
    field_names,
    owner_of,
    walk,
)
from worldsmith.config.declare.value_types import (
    fit,
    fits,
    is_config_class,
    is_reference,
    item_hint,
    mismatch,
    nested_config_classes,
    union_members,
)
from worldsmith.config.errors import SHOWN, ConfigError, Place, Problem, locate
from worldsmith.config.toml.toml_text import Span
from worldsmith.config.tree.paths import Path, forget_places, format_path, starts_with
from worldsmith.config.tree.plain import MISSING, TAG, class_defaults, required_fields
from worldsmith.config.tree.suggest import did_you_mean_path
from worldsmith.config.yaml.yaml_text import advice_on, read_yaml

UNSET = "${???}"
"""Value of a required field that has not been set."""
TARGET, PARAMS = "target", "params"
_Tree = TypeVar("_Tree", bound=Config)
_INVALID: Any = object()


def from_dict(data: Any, cls: type[_Tree] | None = None) -> Any:
    """Builds a config from plain data. References stay unresolved.

    Args:
        data: Nested dicts, lists and scalars.
        cls: Class of the root if the data has no ``type``.

    Raises:
        ConfigError: With all mistakes: unknown or missing keys, wrong types, invalid class names.
    """
    problems: list[Problem] = []
    tree = read_tree(data, cls, problems)
    if problems:
        raise ConfigError(problems)
    return tree


def read_tree(data: Any, cls: type[_Tree] | None, problems: list[Problem]) -> Any:
    """Builds a config from plain data as `from_dict` does, and adds the mistakes to `problems`.

    Args:
        data: Nested dicts, lists and scalars.
        cls: Class of the root if the data has no ``type``.
        problems: List to which mistakes are added.

    Returns:
        The config without the wrong values; None if it cannot be built.
    """
    tree = Reader(problems).section([cls] if cls else [], None, data)
    return require_set(tree, problems) if isinstance(tree, Config) else None


def require_set(tree: Config, problems: list[Problem], hint: str | None = None) -> Config | None:
    """Adds a problem for each required field of a config that has no value.

    Args:
        tree: Unresolved config.
        problems: Mistakes so far; values that they name are not reported again.
        hint: Suggestion for the user.

    Returns:
        The config; None if a required field of the root has no value.
    """
    broken = [problem.keys for problem in problems if problem.path]
    for path, section in unset_fields(tree):
        if not any(starts_with(bad, path) for bad in broken):
            problems.append(Problem(format_path(path), f"{section.__qualname__} needs '{path[-1]}'", hint=hint))
    return None if any(len(path) == 1 for path, _ in unset_fields(tree)) else tree


def from_yaml(text: str, cls: type[_Tree] | None = None, *, file: str = "<yaml>") -> Any:
    """Builds a config from YAML text. References stay unresolved.

    Args:
        text: YAML.
        cls: Class of the root if the text has no ``type``.
        file: Name for messages.

    Raises:
        ConfigError: With all mistakes and their lines and columns.
    """
    document = read_yaml(text, file)
    try:
        return from_dict(document.data, cls)
    except ConfigError as error:
        raise ConfigError(locate(error.problems, document.places)) from None


def unset_fields(node: Any, path: Path = ()) -> Iterator[tuple[Path, type[Config]]]:
    """Yields the required fields at or below a node that have no value.

    Args:
        node: Section, table or list.
        path: Path of `node`, the beginning of all paths.

    Yields:
        (path of the field, class of its section).
    """
    for where, section in walk(node, path):
        for name, value in children(section) if isinstance(section, Config) else ():
            if value == UNSET:
                yield (*where, name), type(section)


def untagged_class(classes: Iterable[Any]) -> type[Config] | None:
    """Returns the class of a section whose data has no ``type``.

    Args:
        classes: Alternatives in the type of the field.

    Returns:
        The only Config class among them that can be built; None if there is not exactly one.
    """
    concrete = [cls for cls in classes if is_config_class(cls) and cls is not Configurable.Config]
    if len(concrete) != 1:
        return None
    cls: type[Config] = concrete[0]
    owner = owner_of(cls)
    return None if issubclass(cls, Configurable.Config) and (owner is None or isabstract(owner)) else cls


def change_class(old: Config, cls: type[Config]) -> tuple[Config, list[str]]:
    """Converts a section to another class.

    Fields that both classes inherit from their nearest common class keep their values if the new class accepts them,
    unless the value is the default of the old class and the new class has another default; nested sections are
    converted by the same rule. All other fields get the defaults of the new class. All config formats use this rule.

    Args:
        old: Section.
        cls: New class.

    Returns:
        The new section, and the names of the fields of `old` whose non-default values are lost.
    """
    common = next(parent for parent in cls.__mro__ if isinstance(old, parent) and issubclass(parent, Config))
    values: dict[str, Any] = {}
    lost: list[str] = []
    defaults, before, after = class_defaults(type(old)), field_hints(type(old)), field_hints(cls)
    new_defaults = class_defaults(cls)
    for name in field_names(type(old)):
        value = getattr(old, name)
        inner = None
        if name in field_names(common):
            if name in defaults and value == defaults[name] and new_defaults.get(name, value) != value:
                continue
            if before[name] == after[name] or is_reference(value) or fits(value, after[name]):
                values[name] = value
                continue
            inner = untagged_class(union_members(after[name]))
        if inner is not None and isinstance(value, Config):
            values[name], below = change_class(value, inner)
            lost += [f"{name}.{key}" for key in below]
        elif name not in defaults or value != defaults[name]:
            lost.append(name)
    return _made(cls, values), lost


def unset_tree(cls: type[Config]) -> Config:
    """Returns a section of a class with its defaults; required fields have the placeholder `UNSET`."""
    return _made(cls, {})


def _made(cls: type[Config], values: Mapping[str, Any]) -> Config:
    return cls(**{name: UNSET for name in required_fields(cls)} | dict(values))


class Reader:
    """Converts plain data to sections and values, on top of existing ones; mistakes go to `problems`.

    Values that the data omits, or that are wrong, keep their existing value or the default.

    Args:
        problems: List to which mistakes are added.
        warnings: List to which warnings are added.
        merge: Whether the data is the content of a config file that is applied on top of existing values: a table
            (dict) is merged with the existing one key by key, and the value ``???`` counts as omitted. False: a table
            replaces the existing one.
        spans: Source positions of the data, by path in the data.
        places: Receives the source position of each value that was set, by path in the config.
        known: Valid paths, for suggestions.
        without_recipe: Whether the config starts from no recipe: a table in the files then replaces the default of its
            field.
    """

    def __init__(
        self,
        problems: list[Problem],
        warnings: list[str] | None = None,
        *,
        merge: bool = False,
        spans: Mapping[Path, Span] | None = None,
        places: dict[Path, Place] | None = None,
        known: Iterable[Path] = (),
        without_recipe: bool = False,
    ) -> None:
        self.problems = problems
        self.warnings = [] if warnings is None else warnings
        self.merge = merge
        self.spans = spans or {}
        self.places = {} if places is None else places
        self.known = known
        self.without_recipe = without_recipe

    def section(self, classes: list[type], below: Any, above: Any, path: Path = (), source: Path = ()) -> Any:
        """Converts a dict to a config section.

        Args:
            classes: Classes that the section may have.
            below: Existing section, whose values stay unless the data sets them; None or another value: no section.
            above: Data of the section.
            path: Path of the section in the config.
            source: Path of the data in the file.

        Returns:
            The section; _INVALID, with an added problem, if the data is not a dict or its class cannot be determined.
        """
        if not isinstance(above, dict):
            return self.refuse(mismatch(path, "a section (a table of its fields)", above), source)
        old = type(below) if isinstance(below, Config) else None
        entries = self.unfold(above, old, path, source)
        cls = None if entries is None else self.choose_class(entries, classes, old, path)
        if entries is None or cls is None:
            return _INVALID
        values: dict[str, Any] = {}
        if isinstance(below, Config):
            if cls is not old:
                below = self.changed(below, cls, path, entries[TAG][1])
            values = {name: getattr(below, name) for name in field_names(cls)}
        elif self.merge:
            values = class_defaults(cls)
        if TAG in entries and (place := self.place(entries[TAG][1])):
            self.places[(*path, TAG)] = place
        hints = field_hints(cls)
        for key, (raw, origin) in entries.items():
            if key == TAG:
                continue
            here = (*path, str(key))
            if key not in hints:
                self.unknown_key(here, cls, origin)
            elif (value := self.value(hints[key], values.get(key), raw, here, origin)) is not _INVALID:
                values[key] = value
        return _made(cls, values)

    def value(self, hint: Any, below: Any, above: Any, path: Path, source: Path) -> Any:
        """Converts plain data to a value of a config field.

        Args:
            hint: Type of the field.
            below: Existing value.
            above: Data of the new value.
            path: Path of the value in the config.
            source: Path of the data in the file.

        Returns:
            The value; _INVALID if the data does not fit the type, with an added problem, or counts as omitted.
        """
        if self.merge and above == MISSING and hint is not Any:
            return _INVALID
        opaque = path == (OPAQUE,)
        if opaque and not isinstance(above, dict):  # nor a reference: it would not be resolved there
            return self.refuse(mismatch(path, "a table", above), source)
        sections = nested_config_classes(hint)
        if sections and isinstance(above, dict):
            return self.section(sections, below, above, path, source)
        kinds = [get_origin(member) for member in union_members(hint)]
        if isinstance(above, dict) and (dict in kinds or (hint is Any and self.merge)):
            return self.table(item_hint(hint, dict), below, above, path, source)
        if isinstance(below, (Config, dict, list)):
            forget_places(self.places, path)
        if isinstance(above, list) and list in kinds:
            inner = item_hint(hint, list)
            found: Any = [self.item(inner, item, (*path, i), (*source, i)) for i, item in enumerate(above)]
            if any(item is _INVALID for item in found):
                return _INVALID
        else:
            mistakes: list[Problem] = []
            found = copy.deepcopy(fit(above, hint, path, mistakes))
            for mistake in mistakes:
                self.refuse(dataclasses.replace(mistake, hint=mistake.hint or advice_on(above)), source)
            if mistakes:
                return _INVALID
        if place := self.place(source):
            self.places[path] = place
        return found

    def item(self, inner: Any, above: Any, path: Path, source: Path) -> Any:
        if above == MISSING:
            message = f"'{MISSING}' stands for a missing value, but an item of a list cannot be omitted"
            return self.refuse(Problem(format_path(path), message), source)
        return self.value(inner, None, above, path, source)

    def table(self, inner: Any, below: Any, above: dict[Any, Any], path: Path, source: Path) -> Any:
        former = below if self.merge and isinstance(below, dict) else {}
        is_default = self.without_recipe and not any(starts_with(written, path) for written in self.places)
        kept = {} if is_default else dict(former)
        wrong = False
        for key, raw in above.items():
            here = (*path, str(key))
            if not isinstance(key, str):
                value = self.refuse(mismatch(here, "a key that is text", key), source)
            else:
                value = self.value(inner, former.get(key), raw, here, (*source, key))
            if value is not _INVALID:
                kept[key] = value
            elif not (self.merge and raw == MISSING):
                wrong = True
        if not above and (place := self.place(source)):
            self.places[path] = place
        return kept if self.merge or not wrong else _INVALID

    def unfold(
        self, above: dict[str, Any], cls: type[Config] | None, path: Path, source: Path
    ) -> dict[str, tuple[Any, Path]] | None:
        """Returns the keys of a section's data; ``{target: X, params: {…}}`` is read as ``{type: X, …}``.

        Args:
            above: Data of the section.
            cls: Class of the existing section; if it has a field `target` or `params`, that key has no special meaning.
            path: Path of the section in the config.
            source: Path of the data in the file.

        Returns:
            Key -> (value, its path in the file); None, with an added problem, for other keys next to `target` and
            `params`.
        """
        fields = field_hints(cls) if cls else {}
        node = [key for key in (TARGET, PARAMS) if key in above and key not in fields]
        if not node:
            return {key: (value, (*source, key)) for key, value in above.items()}
        others = [key for key in above if key not in (TARGET, PARAMS)]
        if others:
            message = f"a section with '{node[0]}' can have no keys except {TARGET} and {PARAMS}"
            advice = f"move '{others[0]}' into {PARAMS}, or write {TAG} instead of {TARGET}, and all fields next to it"
            self.refuse(Problem(format_path((*path, others[0])), message, hint=advice), (*source, others[0]))
            return None
        params = above.get(PARAMS)
        if params is not None and not isinstance(params, dict):
            self.refuse(mismatch((*path, PARAMS), "a table of the class's fields", params), (*source, PARAMS))
            return None
        tag = {TAG: (above[TARGET], (*source, TARGET))} if TARGET in above else {}
        return {**tag, **{key: (value, (*source, PARAMS, key)) for key, value in (params or {}).items()}}

    def choose_class(
        self, entries: Mapping[str, tuple[Any, Path]], classes: list[type], old: type[Config] | None, path: Path
    ) -> type[Config] | None:
        """Returns the class of a config section.

        It is the class that ``type`` names. Without ``type``, it is the class of the existing section; without an
        existing section, it is the only class that the section can have.

        Args:
            entries: Result of `unfold`.
            classes: Classes that the section may have; empty: any.
            old: Class of the existing section; None: no section exists.
            path: Path of the section in the config.

        Returns:
            The class; None, with an added problem, if it is missing or not allowed.
        """
        where = format_path((*path, TAG))
        wanted = " or ".join(tag_of(cls) for cls in classes) or None
        if TAG not in entries:
            found = old or untagged_class(classes)
            if found is None:
                self.refuse(Problem(where, "this section must name its class", expected=wanted), ())
            return found
        tag, source = entries[TAG]
        try:
            cls = class_of(tag)
        except ValueError as error:
            self.refuse(Problem(where, str(error), hint=f"expected {wanted}" if wanted else None), source)
            return None
        if classes and not issubclass(cls, tuple(classes)):
            self.refuse(Problem(where, f"{tag} is not allowed here", expected=wanted, found=tag_of(cls)), source)
            return None
        return cls

    def changed(self, below: Config, cls: type[Config], path: Path, source: Path) -> Config:
        """Converts the existing section `below` to the class `cls`, with a warning that lists the values that are lost.

        Args:
            below: Existing section.
            cls: New class.
            path: Path of the section in the config.
            source: Path of the class name in the file.
        """
        made, lost = change_class(below, cls)
        if lost:
            place = self.place(source)
            self.warnings.append(
                f"{f'{place.file}:{place.line}: ' if place else ''}{format_path(path) or 'the root'} changes from "
                f"{tag_of(type(below))} to {tag_of(cls)}; settings of the former are dropped: {', '.join(lost)}"
            )
        for key in lost:
            forget_places(self.places, (*path, *key.split(".")))
        return made

    def unknown_key(self, path: Path, cls: type[Config], source: Path) -> None:
        siblings = [(*path[:-1], name) for name in field_hints(cls)]
        near = did_you_mean_path(path, [*siblings, *self.known]) if len(self.problems) < SHOWN else None
        advice = near or f"it has: {', '.join(field_hints(cls)) or 'no fields'}"
        span = self.spans.get(source)
        message = f"{cls.__qualname__} has no field '{path[-1]}'"
        self.problems.append(Problem(format_path(path), message, hint=advice, place=span.key if span else None))

    def refuse(self, problem: Problem, source: Path) -> Any:
        """Adds a problem with the position of the file path `source`; returns _INVALID."""
        self.problems.append(problem.at(self.place(source)))
        return _INVALID

    def place(self, source: Path) -> Place | None:
        """Returns the source position of the data at a file path, or of its nearest parent; None without positions."""
        for length in range(len(source), 0, -1) if self.spans else ():
            if source[:length] in self.spans:
                return self.spans[source[:length]].value
        return next((Place(span.key.file) for span in self.spans.values()), None)
