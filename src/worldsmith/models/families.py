"""Model families by name: what a room of the house, such as `checkpoint/formats/`, knows of each."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cached_property
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")
ATTRIBUTE = "FAMILY"


class FamilyRegistry(Generic[T]):
    """What a room knows of each family, found by the family's name; imported when it is first asked for.

    A shipped family is a module of the room that has the attribute `FAMILY`; one of another package is an entry point
    of `group`; a program may `register` its own.
    """

    def __init__(self, room: str, group: str) -> None:
        self.room, self.group = room, group
        self._registered: dict[str, T] = {}

    def register(self, family: str, known: T) -> None:
        """Adds a family, or replaces it."""
        self._registered[family] = known

    def unregister(self, family: str) -> None:
        self._registered.pop(family, None)

    def find(self, family: str) -> T | None:
        """What the room knows of a family; None where it knows nothing."""
        if family not in self._registered:
            points = [point for point in entry_points(group=self.group) if point.name == family]
            if family in self._shipped:
                self._registered[family] = getattr(importlib.import_module(f"{self.room}.{family}"), ATTRIBUTE)
            elif points:
                self._registered[family] = points[0].load()
        return self._registered.get(family)

    def names(self) -> list[str]:
        """All families, in the order of their names."""
        return sorted({*self._shipped, *(point.name for point in entry_points(group=self.group)), *self._registered})

    def all(self) -> list[T]:
        return [known for name in self.names() if (known := self.find(name)) is not None]

    @cached_property
    def _shipped(self) -> list[str]:
        room = importlib.import_module(self.room)
        names = [module.name for module in pkgutil.iter_modules(room.__path__)]
        return [name for name in names if hasattr(importlib.import_module(f"{self.room}.{name}"), ATTRIBUTE)]
