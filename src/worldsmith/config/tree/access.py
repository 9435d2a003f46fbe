"""Walking the tree by paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worldsmith.config.declare.configurable import Config, field_names
from worldsmith.config.tree.paths import Path
from worldsmith.config.tree.plain import OPAQUE


def children(node: Any) -> list[tuple[Any, Any]]:
    """The named values directly below a section, table or list; nothing for a leaf. Opaque data is left out."""
    if isinstance(node, Config):
        return [(name, getattr(node, name)) for name in field_names(type(node)) if name != OPAQUE]
    if isinstance(node, dict):
        return list(node.items())
    if isinstance(node, list):
        return list(enumerate(node))
    return []


def walk(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value with its path, parents first."""
    yield path, node
    for name, child in children(node):
        yield from walk(child, (*path, name))


def all_paths(tree: Config) -> list[Path]:
    """The paths of all fields and table keys of a tree (list items apart)."""
    return [path for path, _ in walk(tree) if path and not isinstance(path[-1], int)]
