"""Walking the tree by paths."""

from __future__ import annotations

from typing import Any

from worldsmith.config.declare.configurable import Config, field_hints, field_names, walk
from worldsmith.config.declare.value_types import item_hint
from worldsmith.config.tree.paths import Path
from worldsmith.config.tree.plain import OPAQUE

ABSENT: Any = object()


def find(node: Any, path: Path, default: Any = None) -> Any:
    """The value at a path below `node`; `default` if there is none."""
    for part in path:
        if isinstance(node, Config):
            known = part != OPAQUE and part in field_names(type(node))
            node = getattr(node, str(part)) if known else ABSENT
        elif isinstance(node, dict):
            node = node.get(part, ABSENT)
        elif isinstance(node, list):
            node = node[part] if isinstance(part, int) and part < len(node) else ABSENT
        else:
            return default
        if node is ABSENT:
            return default
    return node


def child_hint(node: Any, part: str | int, hint: Any) -> Any:
    """The type of what is, or could be, directly below a `node` of type `hint`."""
    if isinstance(node, Config):
        return field_hints(type(node)).get(str(part), Any)
    return item_hint(hint, type(node))


def all_paths(tree: Config) -> list[Path]:
    """The paths of all fields and table keys of a tree (list items apart)."""
    return [path for path, _ in walk(tree) if path and not isinstance(path[-1], int)]
