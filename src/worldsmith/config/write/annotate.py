"""The origin of every value of a loaded config: as comments in YAML text, which stays valid, and as plain data."""

from __future__ import annotations

import itertools
from typing import Any

from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.paths import Path, format_path
from worldsmith.config.tree.plain import TAG, to_dict
from worldsmith.config.tree.provenance import origin_of
from worldsmith.config.write.values import printable
from worldsmith.config.yaml.yaml_text import dump_yaml, read_yaml

COLUMN = 56
"""Max column at which comments are aligned; after a longer line the comment follows directly."""
LONGEST = 110
"""Max length of a comment in characters."""


def show_tree(loaded: Loaded, *, custom: bool = False, origins: bool = True, changed: bool = False) -> str:
    """Formats the resolved config as YAML.

    Args:
        loaded: Loaded config.
        custom: Whether to include the opaque data in ``custom``.
        origins: Whether to add the origin of each value as a comment.
        changed: Whether to write only values that differ from the recipe (or from the defaults of the classes).
            Comments at the end then list keys of the recipe that the config does not have.
    """
    data = to_dict(loaded.tree, custom=custom or changed)
    if changed:
        data = _only(data, loaded.changed, ()) or {}
    text = dump_yaml(data)
    if origins and data:
        text = annotate(text, {path: comment(loaded, path, value) for path, value in plain_leaves(data)})
    return text + "".join(f"# removed: {format_path(path)}\n" for path in loaded.removed if changed)


def describe_origins(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Describes each value of `config.yaml` as plain data, for the run folder.

    Returns:
        By path: `origin` of the value; `changed`: True if it differs from the recipe; `was`: the value of the recipe.
        Without a recipe, values are compared with the defaults of the classes, and `was` is omitted.
    """
    before = {} if loaded.base is None else dict(plain_leaves(to_dict(loaded.base)))
    found: dict[str, dict[str, Any]] = {}
    for path, value in plain_leaves(to_dict(loaded.tree)):
        entry = found[format_path(path)] = {"origin": comment(loaded, path, value)}
        if path in loaded.changed:
            entry["changed"] = True
            if path in before:
                entry["was"] = before[path]
    return found


def comment(loaded: Loaded, path: Path, value: Any) -> str:
    """Returns the origin of a config leaf as the text of a comment; for a list, all different origins of its items."""
    if path[-1] == TAG:
        return str(origin_of(loaded.provenance, path[:-1])) if len(path) > 1 else ""
    found = [str(origin_of(loaded.provenance, path))]
    if isinstance(value, list) and value:
        found = [str(origin_of(loaded.provenance, (*path, index))) for index in range(len(value))]
    text = printable(", ".join(dict.fromkeys(found)))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def annotate(text: str, comments: dict[Path, str]) -> str:
    """Adds comments to leaves of YAML text: after a leaf on one line, above a leaf of several lines.

    Args:
        text: YAML text, which is not changed otherwise.
        comments: Comment by path of the leaf; "" adds none.
    """
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


def plain_leaves(data: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Returns (path, value) of the single values, lists of plain values and empty tables of nested data.

    Args:
        data: Nested dicts and lists.
        path: Path of `data`, the beginning of all paths.
    """
    if isinstance(data, dict) and data:
        return [leaf for key, child in data.items() for leaf in plain_leaves(child, (*path, key))]
    if isinstance(data, list) and any(isinstance(item, (dict, list)) for item in data):
        return [leaf for index, child in enumerate(data) for leaf in plain_leaves(child, (*path, index))]
    return [(path, data)]


def _only(data: Any, paths: set[Path], path: Path) -> Any:
    """Returns nested dicts reduced to the values at some paths; None if no value is left.

    Args:
        data: Nested dicts.
        paths: Paths of the values to keep.
        path: Path of `data`.
    """
    if path in paths or not isinstance(data, dict):
        return data if path in paths else None
    found = {key: part for key, child in data.items() if (part := _only(child, paths, (*path, key))) is not None}
    if TAG in found and (*path, TAG) not in paths:
        del found[TAG]
    return found or None
