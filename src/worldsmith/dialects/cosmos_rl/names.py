"""Conversion between keys of specs and field names: they are equal, except for two names that a config reserves."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

from worldsmith.config.declare.configurable import Config, field_hints
from worldsmith.config.declare.value_types import item_hint, nested_config_classes
from worldsmith.config.errors import Problem
from worldsmith.config.tree.paths import Path, format_path, parse_path
from worldsmith.config.tree.plain import class_defaults

RESERVED = ("type", "custom")
"""Spec keys whose Config fields are called `type_` and `custom_`."""
_INNER = re.compile(rf"\b({'|'.join(RESERVED)})_\b")


def field_of(key: str) -> str:
    """Returns the Config field name of a spec key: `type` and `custom` get a trailing underscore, others stay."""
    return f"{key}_" if key in RESERVED else key


def key_of(field: str) -> str:
    """Returns the spec key of a Config field name: `type_` and `custom_` lose the underscore, others stay."""
    return field[:-1] if field.endswith("_") and field[:-1] in RESERVED else field


def fields_of(key: str) -> Path:
    """Returns the field path of a dotted spec key: ``train.policy.type`` -> ("train", "policy", "type_")."""
    return tuple(field_of(part) if isinstance(part, str) else part for part in parse_path(key))


def spec_key(path: Path) -> str:
    """Returns the dotted spec key of a field path; inverse of `fields_of`."""
    return format_path(tuple(key_of(part) if isinstance(part, str) else part for part in path))


@functools.cache
def leaf_keys(cls: type[Config], path: Path = ()) -> tuple[str, ...]:
    """Returns the dotted keys of all values of a spec class, in field order; a dict of values is one key.

    Args:
        cls: Config class of a spec or of one of its sections.
        path: Field path of `cls` in the spec, with which the keys begin.
    """
    found: tuple[str, ...] = ()
    for name, hint in field_hints(cls).items():
        sections = nested_config_classes(hint)
        here = (*path, name)
        found += leaf_keys(sections[0], here) if sections else (spec_key(here),)
    return found


def spec_type_hint(cls: type[Config], path: Path) -> Any:
    """Returns the type hint of the value at a field path of a spec class; Any if the class has no such field."""
    hint: Any = cls
    for part in path:
        sections = nested_config_classes(hint)
        hint = field_hints(sections[0]).get(str(part), Any) if sections else item_hint(hint, dict)
    return hint


def default_at(cls: type[Config], path: Path) -> Any:
    """Returns the default of the field at a field path of a spec class; None if the field is required."""
    *above, name = path
    section = cls
    for part in above:
        section = nested_config_classes(field_hints(section)[str(part)])[0]
    return class_defaults(section).get(str(name))


def in_keys(problem: Problem) -> Problem:
    """Returns a copy of a problem that names spec keys instead of Config fields in its path, message and hint."""
    path = spec_key(problem.keys) if problem.path else ""
    hint = _INNER.sub(r"\1", problem.hint) if problem.hint else problem.hint
    return replace(problem, path=path, message=_INNER.sub(r"\1", problem.message), hint=hint)
