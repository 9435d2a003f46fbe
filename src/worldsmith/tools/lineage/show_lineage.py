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

Fingerprinter = Callable[[Path], str]
MAX_DEPTH = 50
"""Max depth of the tree: safety limit for lineage records that refer to each other in a cycle."""
SHOWN = 8
"""Number of hexadecimal digits of a fingerprint that are shown."""


class ShowLineage(Action):
    """Prints the lineage of a result as a tree: paths, ids, fingerprints, and missing or changed inputs.

    The exit code is 1 if an input is missing or has changed.
    """

    places: ClassVar[tuple[str, ...]] = ("result",)

    class Config(Action.Config):
        result: str
        """A result folder, run folder, checkpoint folder, or file written by a command; or the name of a run or the id
        of a lineage record below the output root."""

    config: Config

    def run(self) -> Result:
        place = Path(self.config.result)
        if not place.exists():
            from worldsmith.actions.find_parent import find_result_path

            place = find_result_path(self.config.result, "RESULT")
        record = place if is_record(place.name) else record_of(place.resolve())
        if record is None:
            raise FileNotFoundError(f"{place} has no {LINEAGE}: its inputs were not recorded")
        facts = lineage_tree(read_lineage(record), functools.cache(fingerprint))
        changes = [*all_changes(facts)]
        last = "inputs are complete and unchanged" if not changes else f"missing or changed: {len(changes)}"
        return Result([*draw(facts), last], facts, code=1 if changes else 0)


def lineage_tree(record: Lineage, current_fingerprint: Fingerprinter, depth: int = 0) -> dict[str, Any]:
    """Returns a lineage record as a nested dictionary, with the records of its inputs and the state of all files.

    Args:
        record: The lineage record.
        current_fingerprint: Returns the current fingerprint of a path.
        depth: Depth of the record in the tree, which ends at `MAX_DEPTH`.

    Returns:
        Keys: "action", "id", "folder", "created" (time), "outputs" and "inputs", which are lists of the results of
        `compare_entry`. An input also has "role" and, under "made_by", its own lineage (None without a record).
    """
    return {
        "action": record.action,
        "id": record.id,
        "folder": str(record.folder),
        "created": record.data.get("created"),
        "outputs": [
            compare_entry(record, entry, record.folder / entry["path"], current_fingerprint) for entry in record.outputs
        ],
        "inputs": [
            {
                **compare_entry(record, entry, record.locate(entry), current_fingerprint),
                "role": entry["role"],
                "made_by": lineage_of_input(record, entry, current_fingerprint, depth),
            }
            for entry in record.inputs
        ],
    }


def compare_entry(
    record: Lineage, entry: Mapping[str, Any], place: Path, current_fingerprint: Fingerprinter
) -> dict[str, Any]:
    """Compares an input or output of a lineage record with its current content.

    Args:
        record: The lineage record.
        entry: Entry of the input or output in the record.
        place: Path of the input or output.
        current_fingerprint: Returns the current fingerprint of a path.

    Returns:
        "path", "fingerprint" (as recorded), "state" (description of the current state as text), and "same" (whether
        the content is unchanged).
    """
    problem = record.change(entry, place, current_fingerprint)
    state = "unchanged" if entry["fingerprint"] else "not on this machine when it was recorded"
    path = str(place) if place.exists() else entry["path"]
    return {"path": path, "fingerprint": entry["fingerprint"], "state": problem or state, "same": problem is None}


def lineage_of_input(
    record: Lineage, entry: Mapping[str, Any], current_fingerprint: Fingerprinter, depth: int
) -> dict[str, Any] | None:
    """Returns the lineage of the input `entry` of a record, as from `lineage_tree`; None if the input has no record.

    `current_fingerprint` returns the current fingerprint of a path; `depth` is the depth of `record` in the tree.
    """
    found = record_of(record.locate(entry).resolve()) if depth < MAX_DEPTH else None
    return None if found is None else lineage_tree(read_lineage(found), current_fingerprint, depth + 1)


def all_changes(facts: Mapping[str, Any]) -> list[str]:
    """Returns the paths of all inputs and outputs in a lineage (from `lineage_tree`) that are missing or changed."""
    own = [entry["path"] for entry in (*facts["inputs"], *facts["outputs"]) if not entry["same"]]
    return own + [path for entry in facts["inputs"] if entry["made_by"] for path in all_changes(entry["made_by"])]


def draw(facts: Mapping[str, Any]) -> list[str]:
    """Returns a lineage (from `lineage_tree`) as the lines of a text tree, without wrapping."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=10_000, color_system=None).print(tree_of(facts), end="")
    return [line.rstrip() for line in text.getvalue().splitlines()]


def tree_of(facts: Mapping[str, Any]) -> Tree:
    """Returns a lineage (from `lineage_tree`) as a tree of the rich library."""
    from rich.markup import escape
    from rich.tree import Tree

    tree = Tree(escape(f"{facts['action']} {facts['folder']} (id {facts['id']}, {facts['created']})"))
    for entry in facts["outputs"]:
        tree.add(escape(f"wrote {format_entry(entry)}"))
    for entry in facts["inputs"]:
        branch = tree.add(escape(f"{entry['role']} {format_entry(entry)}"))
        if entry["made_by"]:
            branch.add(tree_of(entry["made_by"]))
    return tree


def format_entry(entry: Mapping[str, Any]) -> str:
    """Returns a line about an input or output: path, shortened fingerprint and, unless it is unchanged, its state."""
    mark = (entry["fingerprint"] or "").removeprefix("sha256:")[:SHOWN]
    state = "" if entry["state"] == "unchanged" else f"  <- {entry['state']}"
    return f"{entry['path']}{f' [{mark}]' if mark else ''}{state}"
