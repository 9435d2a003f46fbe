"""The steps that lead from one tree to another: values set, table keys added and removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.tree.access import children
from worldsmith.config.tree.paths import Path
from worldsmith.config.tree.plain import OPAQUE


@dataclass(frozen=True, slots=True)
class Change:
    """One step. `action` is "set" for a field or a key that is there, "add" for a new key of a table, or "remove"."""

    action: str
    path: Path
    value: Any = None


def changes(old: Config, new: Config, *, custom: bool = False) -> list[Change]:
    """The steps from `old` to `new`, which have one class. The order of table keys counts.

    With `custom`, the opaque data is compared too, as one value.
    """
    found = list(_between(old, new, ()))
    if custom and not same_value(getattr(old, OPAQUE, {}), getattr(new, OPAQUE, {})):
        found.append(Change("set", (OPAQUE,), getattr(new, OPAQUE)))
    return found


def same_value(a: Any, b: Any) -> bool:
    """Equality that tells 1 from 1.0 and true, and the order of table keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Config):
        return all(same_value(x, y) for (_, x), (_, y) in zip(children(a), children(b)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b) or (a != a and b != b)  # two NaN in opaque data


def _between(old: Any, new: Any, path: Path) -> Iterator[Change]:
    if same_value(old, new):
        return
    if isinstance(new, Config) and type(old) is type(new):
        known = dict(children(old))
        for name, value in children(new):
            yield from _between(known[name], value, (*path, name))
        return
    if isinstance(new, dict) and isinstance(old, dict) and any(isinstance(item, Config) for item in new.values()):
        kept = [key for key in old if key in new]
        if [*kept, *(key for key in new if key not in old)] == list(new):
            yield from (Change("remove", (*path, key)) for key in old if key not in new)
            for key in kept:
                yield from _between(old[key], new[key], (*path, key))
            yield from (Change("add", (*path, key), new[key]) for key in new if key not in old)
            return
    yield Change("set", path, new)
