"""The model families by name, and how the parts of a family are found and imported.

A family of the package is a folder of `worldsmith/families/` whose `__init__.py` has `FAMILY = Family(...)`; one of
another package is an entry point:

    [project.entry-points."worldsmith.families"]
    my_family = "my_package:FAMILY"
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Generic, TypeVar

import worldsmith

T = TypeVar("T")
GROUP = "worldsmith.families"
ATTRIBUTE = "FAMILY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Import paths of the classes of a model family, each as "package.module:name", imported on first use."""

    name: str
    """Name of the family, as in `model.name` of a config."""
    task: str
    """Import path of the family's subclass of `tasks.task.Task`."""
    formats: str | None = None
    """Import path of the family's checkpoint formats (`FamilyFormats`); None: only native exports are supported."""
    recipes: str | None = None
    """Import path of the module that registers the family's recipes (predefined configs); None: no recipes."""
    short_names: Mapping[str, str] = field(default_factory=dict)
    """Short names of released models -> their repositories on the hub."""


@cache
def shipped_families() -> dict[str, Family]:
    """Returns the model families of this package by name, sorted; does not import their task classes or formats."""
    package = importlib.import_module(worldsmith.FAMILIES)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    modules = [importlib.import_module(f"{worldsmith.FAMILIES}.{name}") for name in names]
    found: list[Family] = [getattr(module, ATTRIBUTE) for module in modules if hasattr(module, ATTRIBUTE)]
    return {family.name: family for family in found}


def find_family(name: str) -> Family | None:
    """Returns the family `name`; None if neither this package nor an installed plugin package provides it."""
    if name in shipped_families():
        return shipped_families()[name]
    point = next((point for point in entry_points(group=GROUP) if point.name == name), None)
    return point.load() if point is not None else None


def family_names() -> list[str]:
    """Returns the names of all families, sorted."""
    return sorted({*shipped_families(), *(point.name for point in entry_points(group=GROUP))})


def find_released(short_name: str) -> str | None:
    """Returns the hub repository of a released model; None if no family has that short name."""
    families = filter(None, map(find_family, family_names()))
    return next((family.short_names[short_name] for family in families if short_name in family.short_names), None)


class FamilyRegistry(Generic[T]):
    """Registry of one kind of part of all model families, such as the task classes; parts are imported on first use.

    Args:
        load: Imports and returns the part of a family; returns None for a family without that part.
    """

    def __init__(self, load: Callable[[Family], T | None]) -> None:
        self._load = load
        self._registered: dict[str, T] = {}

    def register(self, family: str, part: T) -> None:
        """Sets the part of the family `family`; an earlier one is replaced, and the family needs no `Family` object."""
        self._registered[family] = part

    def find(self, name: str) -> T | None:
        """Returns the part of the family `name`; None if the family does not exist or has no such part."""
        if name not in self._registered:
            family = find_family(name)
            part = self._load(family) if family is not None else None
            if part is None:
                return None
            self._registered[name] = part
        return self._registered[name]

    def names(self) -> list[str]:
        """Returns the names of all families, sorted, including those that lack the part of this registry."""
        return sorted({*family_names(), *self._registered})

    def all(self) -> list[T]:
        """Returns the parts of all families that have the part, sorted by the families' names."""
        return [part for name in self.names() if (part := self.find(name)) is not None]
