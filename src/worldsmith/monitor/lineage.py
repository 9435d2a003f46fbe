"""`lineage.json`: inputs and settings of a result, with fingerprints that show whether the files have changed."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from worldsmith.files.atomic import write_text
from worldsmith.files.errors import UserError
from worldsmith.files.fingerprint import LINEAGE, fingerprint, is_record
from worldsmith.files.json_file import read_json_object
from worldsmith.monitor.run_record import package_versions

Role = Literal["model", "adapter", "base", "processor", "dataset", "results"]
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Input:
    """Input of a recorded action, such as a training or an export: a file, folder or Hub model, with its role."""

    role: Role
    """Use of the input in the action; "base": base model of an adapter."""
    path: str | Path
    """Path of a file or folder (for a run: the folder of the checkpoint that was read), or the Hub name of a model that
    is not on this machine."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Additional keys that are stored about the input in `lineage.json`, such as the number of records of a dataset."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Lineage record read from a file: how a result, such as a trained model, was produced and from which inputs."""

    file: Path
    """Current path of the record file."""
    data: Mapping[str, Any]
    """Parsed JSON content, see `write_lineage`."""

    @property
    def folder(self) -> Path:
        """Folder that contains the record."""
        return self.file.parent

    @property
    def id(self) -> str:
        """Identifier of the record: first 16 hex digits of a SHA-256 over action, settings, inputs and outputs."""
        return str(self.data["id"])

    @property
    def action(self) -> str:
        """Name of the action that produced the result, such as "train"."""
        return str(self.data["action"])

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Recorded inputs: dicts with the keys `role`, `path`, `fingerprint`, `record` (lineage file or None)."""
        return list(self.data["inputs"])

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Recorded outputs: dicts with the keys `path` (relative to the folder), `bytes` (size) and `fingerprint`."""
        return list(self.data["outputs"])

    def locate(self, entry: Mapping[str, Any]) -> Path:
        """Returns the current path of a recorded input.

        Args:
            entry: Item of `inputs`.

        Returns:
            The recorded path if it exists. Otherwise the path that the input has if it was moved together with the
            record; this path may not exist.
        """
        path = Path(entry["path"])
        return path if path.exists() else self.folder / os.path.relpath(path, self.data["folder"])

    def change(
        self, entry: Mapping[str, Any], path: Path, compute_fingerprint: Callable[[Path], str] | None = fingerprint
    ) -> str | None:
        """Describes how a file or folder differs from its recorded entry, such as "is missing"; None if unchanged.

        An input whose recorded fingerprint is None counts as unchanged.

        Args:
            entry: Item of `inputs` or `outputs`.
            path: Current path of the input or output.
            compute_fingerprint: Returns the fingerprint of a path; None: check only that the path exists.
        """
        if not path.exists():
            return "is missing" if entry["fingerprint"] else None
        try:
            same = compute_fingerprint is None or entry["fingerprint"] in (None, compute_fingerprint(path))
        except (OSError, UserError) as error:
            return f"cannot be read: {error}"
        return None if same else "has changed since"


def write_lineage(
    place: str | Path,
    *,
    action: str,
    settings: Mapping[str, Any],
    inputs: Iterable[Input | Mapping[str, Any]],
    outputs: Iterable[str] = (),
) -> dict[str, Any]:
    """Writes the lineage record of a result. Call it after all other files of the result are written.

    A result folder gets `lineage.json`, or `ACTION.lineage.json` if `lineage.json` belongs to another action. A result
    file gets `FILE.lineage.json` next to it.

    Args:
        place: Folder or file of the result.
        action: Name of the action, such as "train".
        settings: Plain data (`to_dict` of the action's config) without secrets.
        inputs: Inputs of the action; dicts, such as the `inputs` of another record, are copied unchanged. The recorded
            fingerprint of an input that is not on this machine is None.
        outputs: Paths of result files, relative to the folder of the record; "." for a folder that is a model. If
            `place` is a file, that file is always recorded as the first output.

    Returns:
        The record that was written: a dict with `schema` (format version), `id`, `action`, `created` (UTC, ISO 8601),
        `folder` (absolute), `settings`, `inputs` and `outputs` (see `Lineage`), and `versions` (version by package).

    Raises:
        OSError: If an input or output cannot be read, or the record cannot be written.
    """
    file = record_file(Path(place), action)
    folder = file.parent
    names = [Path(place).name, *outputs] if Path(place).is_file() else outputs
    read = [describe_input(entry) if isinstance(entry, Input) else dict(entry) for entry in inputs]
    written = [describe_output(folder, name) for name in dict.fromkeys(names)]
    plain = json.loads(json.dumps(dict(settings), default=str))
    identity = [action, plain, [[i["role"], i["path"], i["fingerprint"]] for i in read], written]
    record = {
        "schema": SCHEMA,
        "id": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16],
        "action": action,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "folder": str(folder.resolve()),
        "settings": plain,
        "inputs": read,
        "outputs": written,
        "versions": package_versions(),
    }
    write_text(file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def record_file(place: Path, action: str) -> Path:
    """Returns the path at which `write_lineage` writes the record of `place` (result file or folder) of `action`."""
    if place.is_file():
        return place.with_name(f"{place.name}.{LINEAGE}")
    file = place / LINEAGE
    return file if not file.is_file() or read_lineage(file).action == action else place / f"{action}.{LINEAGE}"


def describe_input(entry: Input) -> dict[str, Any]:
    """Builds the dict that describes an input in a lineage record: `role`, `path`, `fingerprint` and `record`.

    `record` is the path of the lineage record of the input, or None. `fingerprint` is None if the path does not exist
    on this machine. The dict also contains the items of `entry.facts`.
    """
    place, mark, record = entry.path, None, None
    if Path(place).exists():
        place = Path(place).resolve()
        mark, record = fingerprint(place), record_of(place)
    found = {"fingerprint": mark, "record": record and str(record)}
    return {"role": entry.role, "path": str(place), **found, **entry.facts}


def describe_output(folder: Path, name: str) -> dict[str, Any]:
    """Builds the dict that describes an output in a lineage record: `path`, `bytes` (size) and `fingerprint`.

    Args:
        folder: Folder of the result.
        name: Path of the output file or folder, relative to `folder`.
    """
    path = folder / name
    files = (
        [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not is_record(file.name)]
    )
    return {"path": name, "bytes": sum(file.stat().st_size for file in files), "fingerprint": fingerprint(path)}


def record_of(path: Path) -> Path | None:
    """Returns the path of the lineage record of a file or folder; None if there is no record.

    The record of a checkpoint folder is that of its run.
    """
    if path.parent.name == "checkpoints":
        path = path.parent.parent
    if path.is_dir():
        return path / LINEAGE if (path / LINEAGE).is_file() else None
    own = path.with_name(f"{path.name}.{LINEAGE}")
    others = [path.with_name(LINEAGE), *sorted(path.parent.glob(f"*.{LINEAGE}"))]
    return next(
        (file for file in (own, *others) if file.is_file() and (file == own or lists_output(file, path.name))), None
    )


def lists_output(record: Path, name: str) -> bool:
    """Returns whether the lineage record in the file `record` lists an output with the path `name`."""
    return any(entry["path"] == name for entry in read_lineage(record).outputs)


def read_lineage(place: str | Path) -> Lineage:
    """Reads a lineage record.

    Args:
        place: Folder with `lineage.json`, or the record file.

    Raises:
        FileNotFoundError: If there is no record.
        UserError: If the file is not a record of this schema version.
    """
    place = Path(place)
    file = place / LINEAGE if place.is_dir() else place
    if not file.is_file():
        raise FileNotFoundError(f"{place} has no {LINEAGE}: its inputs were not recorded")
    data = read_json_object(file)
    if data.get("schema") != SCHEMA or not all(key in data for key in ("id", "action", "folder", "inputs", "outputs")):
        raise UserError(f"{file} is not a lineage record: expected schema {SCHEMA}, found {data.get('schema')!r}")
    return Lineage(file, data)
