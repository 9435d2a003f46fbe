"""A loaded tree as YAML text with the origin of every value in a comment; the text is still valid YAML."""

from __future__ import annotations

import itertools
from typing import Any

from worldsmith.config.tree.draft import Loaded
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import TAG, to_dict
from worldsmith.config.tree.provenance import origin_of
from worldsmith.config.write.values import printable
from worldsmith.config.yaml.text import dump_yaml, read_yaml

COLUMN = 56
"""Where comments stand at most; those of longer lines follow the line."""
LONGEST = 110
"""Letters of a comment."""


def show_tree(loaded: Loaded, *, custom: bool = False, origins: bool = True, changed: bool = False) -> str:
    """The resolved tree as YAML. With `changed`, only what differs from the recipe (or from the class's defaults).

    Keys that the recipe has and the tree has not are named in comments below.
    """
    data = to_dict(loaded.tree, custom=custom or changed)
    if changed:
        data = _only(data, loaded.changed, ()) or {}
    text = dump_yaml(data)
    if origins and data:
        text = annotate(text, {path: comment(loaded, path, value) for path, value in leaves(data)})
    return text + "".join(f"# removed: {format_path(path)}\n" for path in loaded.removed if changed)


def comment(loaded: Loaded, path: Path, value: Any) -> str:
    """Who wrote a leaf; each of several writers for a list whose items come from different places."""
    if path[-1] == TAG:
        return str(origin_of(loaded.provenance, path[:-1])) if len(path) > 1 else ""
    told = [str(origin_of(loaded.provenance, path))]
    if isinstance(value, list) and value:
        told = [str(origin_of(loaded.provenance, (*path, index))) for index in range(len(value))]
    text = printable(", ".join(dict.fromkeys(told)))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def annotate(text: str, comments: dict[Path, str]) -> str:
    """YAML text with a comment behind each of the given leaves, or above one that takes several lines."""
    places = read_yaml(text, "<tree>").places
    lines = text.splitlines()
    first = {path: (place.line or 1) - 1 for path, place in places.items()}
    starts = sorted({*first.values(), len(lines)})
    after = dict(itertools.pairwise(starts))
    behind: dict[int, str] = {}
    above: dict[int, str] = {}
    for path, words in comments.items():
        if words:
            line = first[path]
            (behind if after[line] == line + 1 else above)[line] = words
    column = min(COLUMN, max((len(lines[line]) for line in behind), default=0))
    shown = []
    for number, written in enumerate(lines):
        if number in above:
            shown.append(f"{' ' * (len(written) - len(written.lstrip()))}# {above[number]}")
        shown.append(f"{written:<{column}}  # {behind[number]}" if number in behind else written)
    return "\n".join(shown) + "\n"


def leaves(data: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """The single values and plain lists of nested data, with their paths; an empty table is one too."""
    if isinstance(data, dict) and data:
        return [leaf for key, child in data.items() for leaf in leaves(child, (*path, key))]
    if isinstance(data, list) and any(isinstance(item, (dict, list)) for item in data):
        return [leaf for index, child in enumerate(data) for leaf in leaves(child, (*path, index))]
    return [(path, data)]


def _only(data: Any, paths: set[Path], path: Path) -> Any:
    """The part of nested dicts that is at or above one of `paths`; None for nothing."""
    if path in paths or not isinstance(data, dict):
        return data if path in paths else None
    found = {key: part for key, child in data.items() if (part := _only(child, paths, (*path, key))) is not None}
    if TAG in found and (*path, TAG) not in paths:
        del found[TAG]
    return found or None
