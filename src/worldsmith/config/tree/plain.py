"""The tree as plain data and back: ``from_dict(to_dict(c)) == c``, through YAML and JSON text too.

A field that several classes fit carries the class in the key ``type``. The root's ``custom`` is the project's own data:
it is not part of a dump unless asked for.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TypeVar, get_args, get_origin

from worldsmith.config.declare.class_tags import class_of, tag_of
from worldsmith.config.declare.configurable import Config, Configurable, field_hints, field_names, owner_of
from worldsmith.config.declare.value_types import (
    fit,
    is_reference,
    item_hint,
    mismatch,
    nested_config_classes,
    union_members,
)
from worldsmith.config.errors import ConfigError, Problem
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.suggest import did_you_mean

OPAQUE = "custom"
TAG = "type"
_Tree = TypeVar("_Tree", bound=Config)
_INVALID: Any = object()


def to_dict(config: Config, *, custom: bool = False) -> dict[str, Any]:
    """Plain dicts, lists and scalars, with the root's class in ``type``. With `custom`, the opaque data too."""
    return {TAG: tag_of(type(config)), **_fields_to_dict(config, custom)}


def from_dict(data: Any, cls: type[_Tree] | None = None) -> Any:
    """The tree of `data`. `cls` is the root's class where the data does not name one.

    Raises ConfigError with every mistake: unknown keys, missing ones, wrong types, class names that cannot be used.
    """
    problems: list[Problem] = []
    tree = read_tree(data, cls, problems)
    if problems:
        raise ConfigError(problems)
    return tree


def read_tree(data: Any, cls: type[_Tree] | None, problems: list[Problem]) -> Any:
    """`from_dict`, with its mistakes as a list. What they leave of the tree is returned: None if it is nothing."""
    tree = read_section(data, [cls] if cls else [], (), problems)
    return None if tree is _INVALID else tree


def required_fields(cls: type[Config]) -> list[str]:
    """The fields that have no default."""
    absent = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is absent and f.default_factory is absent]


def read_section(
    data: Any, classes: list[type], path: Path, problems: list[Problem], base: Config | None = None
) -> Any:
    """A section from a dict. `classes` are those that the field accepts; `base` gives the values that are left out.

    A value that is wrong is replaced by that of `base` or by the default, so that the rest can be looked at.
    """
    if not isinstance(data, dict):
        problems.append(mismatch(path, "a section (a table of its fields)", data))
        return _INVALID
    cls = _choose_class(data, classes, path, problems, base)
    if cls is None:
        return _INVALID
    hints = field_hints(cls)
    values: dict[str, Any] = {}
    wrong: set[str] = set()
    if base is not None:
        values = {name: getattr(base, name) for name in _shared_fields(type(base), cls)}
    for key, raw in data.items():
        if key == TAG:
            continue
        here = (*path, str(key))
        if key not in hints:
            advice = did_you_mean(str(key), hints) or f"it has: {', '.join(hints) or 'no fields'}"
            problems.append(Problem(format_path(here), f"{cls.__qualname__} has no field '{key}'", hint=advice))
        elif key == OPAQUE and isinstance(raw, dict):
            values[key] = copy.deepcopy(raw)
        elif key == OPAQUE:  # also a reference: nobody resolves it there
            problems.append(mismatch(here, "a table", raw))
            wrong.add(key)
        elif (value := read_value(raw, hints[key], here, problems, values.get(key))) is not _INVALID:
            values[key] = value
        else:
            wrong.add(key)
    absent = [name for name in required_fields(cls) if name not in values]
    for name in absent:
        if name not in wrong:
            problems.append(Problem(format_path((*path, name)), f"{cls.__qualname__} needs '{name}'"))
    return _INVALID if absent else cls(**values)


def _shared_fields(old: type[Config], new: type[Config]) -> list[str]:
    """The fields that a section keeps when its class changes: those of the nearest class that both derive from."""
    common = next(parent for parent in new.__mro__ if issubclass(old, parent) and issubclass(parent, Config))
    before, after = field_hints(old), field_hints(new)
    return [name for name in field_names(common) if before[name] == after[name]]


def read_value(raw: Any, hint: Any, path: Path, problems: list[Problem], base: Any = None) -> Any:
    """A value from plain data, with dicts turned into sections where `hint` asks for one."""
    if is_reference(raw):
        return raw
    sections = nested_config_classes(hint)
    if sections and isinstance(raw, dict):
        return read_section(raw, sections, path, problems, base if isinstance(base, Config) else None)
    if isinstance(raw, (list, dict)):
        for member in union_members(hint):
            if get_origin(member) is type(raw) and isinstance(raw, list):
                inner = get_args(member)[0]
                items = [read_value(item, inner, (*path, i), problems) for i, item in enumerate(raw)]
                return items if not any(item is _INVALID for item in items) else _INVALID
            if get_origin(member) is type(raw) and nested_config_classes(get_args(member)[1]):
                inner = get_args(member)[1]
                pairs = dict(raw).items()
                entries = {str(k): read_value(v, inner, (*path, str(k)), problems) for k, v in pairs}
                return entries if not any(entry is _INVALID for entry in entries.values()) else _INVALID
    count = len(problems)
    value = fit(raw, hint, path, problems)
    return value if len(problems) == count else _INVALID


def to_yaml(config: Config, *, custom: bool = False) -> str:
    """The tree as YAML text; `from_yaml` reads it back."""
    from worldsmith.config.yaml.text import dump_yaml

    return dump_yaml(to_dict(config, custom=custom))


def from_yaml(text: str, cls: type[_Tree] | None = None, *, file: str = "<yaml>") -> Any:
    """The tree of a YAML text. Raises ConfigError, with lines and columns, for every mistake in it."""
    from worldsmith.config.yaml.text import read_yaml

    document = read_yaml(text, file)
    try:
        return from_dict(document.data, cls)
    except ConfigError as error:
        raise error.located(document.places) from None


def plain(value: Any) -> Any:
    """A value of a tree as plain data, with the class of every section."""
    if isinstance(value, Config):
        return to_dict(value, custom=True)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _fields_to_dict(config: Config, custom: bool) -> dict[str, Any]:
    hints = field_hints(type(config))
    return {
        name: copy.deepcopy(getattr(config, name)) if name == OPAQUE else _to_plain(getattr(config, name), hint, custom)
        for name, hint in hints.items()
        if name != OPAQUE or custom
    }


def _to_plain(value: Any, hint: Any, custom: bool) -> Any:
    if isinstance(value, Config):
        plain = _fields_to_dict(value, custom)
        return plain if nested_config_classes(hint) == [type(value)] else {TAG: tag_of(type(value)), **plain}
    if isinstance(value, (list, dict)):
        inner = item_hint(hint, type(value))
        if isinstance(value, list):
            return [_to_plain(item, inner, custom) for item in value]
        return {key: _to_plain(item, inner, custom) for key, item in value.items()}
    return value


def _choose_class(
    data: dict[Any, Any], classes: list[type], path: Path, problems: list[Problem], base: Config | None
) -> type[Config] | None:
    """The class that ``type`` names, else the base's, else the only one that the field has."""
    where = format_path((*path, TAG))
    wanted = " or ".join(tag_of(cls) for cls in classes)
    if TAG in data:
        try:
            cls = class_of(data[TAG])
        except ValueError as error:
            problems.append(Problem(where, str(error), hint=f"this place takes {wanted}" if wanted else None))
            return None
        if classes and not issubclass(cls, tuple(classes)):
            problems.append(Problem(where, f"{data[TAG]} does not fit here", expected=wanted, found=tag_of(cls)))
            return None
        return cls
    if base is not None:
        return type(base)
    # A section without an owner that is no plain section is only the root of a family: it cannot be built.
    concrete = [cls for cls in classes if cls is not Configurable.Config]
    if len(concrete) == 1 and (owner_of(concrete[0]) or not issubclass(concrete[0], Configurable.Config)):
        return concrete[0]
    message = "this section must name its class"
    problems.append(Problem(where, message, expected=wanted or None))
    return None
