"""Differences between two configs: edits from one to the other, and the values that the edits change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from worldsmith.config.declare.configurable import ABSENT, OPAQUE, Config, children
from worldsmith.config.tree.paths import Path, flatten
from worldsmith.config.tree.plain import to_plain


@dataclass(frozen=True, slots=True)
class Change:
    """A path at which two configs differ, with the old and the new value; ABSENT: the config does not have it."""

    path: Path
    old: Any
    new: Any


def find_changes(old: Config, new: Config, *, custom: bool = False) -> list[Change]:
    """Returns the edits that turn `old` into `new`, in order: values to set, and table keys to remove or add.

    A section whose class changes is one edit; so are a list, a table of plain values, and a table whose keys change
    their order.

    Args:
        old: Config before.
        new: Config after.
        custom: Whether to compare the opaque data in ``custom`` too, as one value.
    """
    found = list(_steps(old, new, ()))
    own, other = getattr(old, OPAQUE, {}), getattr(new, OPAQUE, {})
    return [*found, Change((OPAQUE,), own, other)] if custom and not same_value(own, other) else found


def find_differences(old: Config, new: Config, *, custom: bool = False) -> list[Change]:
    """Returns one change for each single value that differs between two configs, as plain data.

    A list is one value. A section whose class changes also differs in `type`.

    Args:
        old: Config before.
        new: Config after.
        custom: Whether to compare the opaque data in ``custom`` too.
    """
    return [leaf for change in find_changes(old, new, custom=custom) for leaf in _leaves(change)]


def same_value(a: Any, b: Any) -> bool:
    """Returns whether two config values are equal, with equal types and order of table keys: 1, 1.0 and True differ."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Config):
        return all(same_value(x, y) for (_, x), (_, y) in zip(children(a), children(b)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b) or (a != a and b != b)  # two NaN in opaque data


def _steps(old: Any, new: Any, path: Path) -> Iterator[Change]:
    if same_value(old, new):
        return
    if isinstance(new, Config) and type(old) is type(new):
        for (name, before), (_, after) in zip(children(old), children(new)):
            yield from _steps(before, after, (*path, name))
        return
    if isinstance(new, dict) and isinstance(old, dict) and any(isinstance(item, Config) for item in new.values()):
        kept = [key for key in old if key in new]
        added = [key for key in new if key not in old]
        if [*kept, *added] == list(new):
            yield from (Change((*path, key), old[key], ABSENT) for key in old if key not in new)
            for key in kept:
                yield from _steps(old[key], new[key], (*path, key))
            yield from (Change((*path, key), ABSENT, new[key]) for key in added)
            return
    yield Change(path, old, new)


def _leaves(change: Change) -> Iterator[Change]:
    before, after = ({} if side is ABSENT else dict(flatten({"": to_plain(side)})) for side in (change.old, change.new))
    for rest in dict.fromkeys([*before, *after]):
        old, new = before.get(rest, ABSENT), after.get(rest, ABSENT)
        if not same_value(old, new):
            yield Change((*change.path, *rest[1:]), old, new)
