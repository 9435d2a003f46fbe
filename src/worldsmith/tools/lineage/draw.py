"""`worldsmith lineage RESULT`: shows what a result was computed from, as a tree."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.actions.action import Action, Result
from worldsmith.files.fingerprint import LINEAGE, fingerprint, is_record
from worldsmith.monitor.lineage import Lineage, read_lineage, record_of

if TYPE_CHECKING:
    from rich.tree import Tree

Look = Callable[[Path], str]
DEEPEST = 50
"""Max records in a row: safety limit against records that refer to each other in a circle."""
SHOWN = 8
"""Hexadecimal digits of a fingerprint."""


class ShowLineage(Action):
    """Prints the lineage of a result as a tree: paths, ids, fingerprints, and missing or changed inputs.

    The exit code is 1 if an input is missing or has changed.
    """

    places: ClassVar[tuple[str, ...]] = ("result",)

    class Config(Action.Config):
        result: str
        """Folder of a result, a run, or one of its checkpoints, or a file written by a command; or the name of a run or
        the id of a record below the output root."""

    config: Config

    def run(self) -> Result:
        place = Path(self.config.result)
        if not place.exists():
            from worldsmith.actions.parents import find_place

            place = find_place(self.config.result, "RESULT")
        record = place if is_record(place.name) else record_of(place.resolve())
        if record is None:
            raise FileNotFoundError(f"{place} has no {LINEAGE}: its inputs were not recorded")
        facts = chain(read_lineage(record), functools.cache(fingerprint))
        changes = [*all_changes(facts)]
        last = "inputs are complete and unchanged" if not changes else f"missing or changed: {len(changes)}"
        return Result([*draw(facts), last], facts, code=1 if changes else 0)


def chain(record: Lineage, look: Look, depth: int = 0) -> dict[str, Any]:
    """Returns a record with the records of its inputs, and whether each input and output is unchanged.

    Args:
        record: The lineage record.
        look: Returns the current fingerprint of a path.
        depth: Number of records above this one; the chain ends at `DEEPEST`.
    """
    return {
        "action": record.action,
        "id": record.id,
        "folder": str(record.folder),
        "created": record.data.get("created"),
        "outputs": [look_at(record, entry, record.folder / entry["path"], look) for entry in record.outputs],
        "inputs": [
            {
                **look_at(record, entry, record.locate(entry), look),
                "role": entry["role"],
                "made_by": made_by(record, entry, look, depth),
            }
            for entry in record.inputs
        ],
    }


def look_at(record: Lineage, entry: Mapping[str, Any], place: Path, look: Look) -> dict[str, Any]:
    """Returns path, fingerprint and present state of an input or output."""
    problem = record.change(entry, place, look)
    state = "as it was" if entry["fingerprint"] else "not on this machine at that time"
    path = str(place) if place.exists() else entry["path"]
    return {"path": path, "fingerprint": entry["fingerprint"], "state": problem or state, "same": problem is None}


def made_by(record: Lineage, entry: Mapping[str, Any], look: Look, depth: int) -> dict[str, Any] | None:
    """Returns the chain of records behind an input; None if no record exists."""
    found = record_of(record.locate(entry).resolve()) if depth < DEEPEST else None
    return None if found is None else chain(read_lineage(found), look, depth + 1)


def all_changes(facts: Mapping[str, Any]) -> list[str]:
    """Returns the paths of all inputs and outputs in a chain that are missing or changed."""
    own = [entry["path"] for entry in (*facts["inputs"], *facts["outputs"]) if not entry["same"]]
    return own + [path for entry in facts["inputs"] if entry["made_by"] for path in all_changes(entry["made_by"])]


def draw(facts: Mapping[str, Any]) -> list[str]:
    """Returns the tree as lines of text, without wrapping."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=10_000, color_system=None).print(tree_of(facts), end="")
    return [line.rstrip() for line in text.getvalue().splitlines()]


def tree_of(facts: Mapping[str, Any]) -> Tree:
    """Returns a chain of records as a tree of the rich library."""
    from rich.markup import escape
    from rich.tree import Tree

    tree = Tree(escape(f"{facts['action']} {facts['folder']} (id {facts['id']}, {facts['created']})"))
    for entry in facts["outputs"]:
        tree.add(escape(f"wrote {short(entry)}"))
    for entry in facts["inputs"]:
        branch = tree.add(escape(f"{entry['role']} {short(entry)}"))
        if entry["made_by"]:
            branch.add(tree_of(entry["made_by"]))
    return tree


def short(entry: Mapping[str, Any]) -> str:
    """Returns path, shortened fingerprint and problem of an input or output as text."""
    mark = (entry["fingerprint"] or "").removeprefix("sha256:")[:SHOWN]
    state = "" if entry["state"] == "as it was" else f"  <- {entry['state']}"
    return f"{entry['path']}{f' [{mark}]' if mark else ''}{state}"
