"""What differs between two trees, path by path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from worldsmith.config.declare.configurable import Config
from worldsmith.config.tree.paths import Path, flatten, format_path
from worldsmith.config.tree.plain import to_dict

_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One path with its two values. A side that does not have the path has `absent`."""

    path: Path
    old: Any
    new: Any
    absent: Any = _ABSENT

    def __str__(self) -> str:
        name = format_path(self.path)
        if self.new is _ABSENT:
            return f"{name}: {show_value(self.old)} -> (only in the first)"
        if self.old is _ABSENT:
            return f"{name}: (only in the second) -> {show_value(self.new)}"
        return f"{name}: {show_value(self.old)} -> {show_value(self.new)}"


def differences(old: Config, new: Config, *, custom: bool = False) -> list[Difference]:
    """The paths whose values differ, in the order of the first tree, then those of the second alone."""
    before, after = (dict(flatten(to_dict(tree, custom=custom))) for tree in (old, new))
    paths = [*before, *(path for path in after if path not in before)]
    pairs = ((path, before.get(path, _ABSENT), after.get(path, _ABSENT)) for path in paths)
    return [Difference(path, a, b) for path, a, b in pairs if not _equal(a, b)]


def show_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)
