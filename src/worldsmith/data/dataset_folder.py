"""Folders of datasets that Worldsmith writes: complete or absent, and identified by the header in dataset.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldsmith.files.atomic import write_text
from worldsmith.files.lines import read_lines
from worldsmith.files.write_checks import files_in, require_only

LIST = ".files"
"""File that lists the written files, one path per line; only these are removed if the dataset is written again."""


def prepare_folder(out: Path, header: dict[str, Any], contents: Sequence[str], force: bool) -> bool:
    """Prepares the folder `out` for a dataset; removes files of an earlier dataset.

    Args:
        out: Folder of the dataset, which is created if it does not exist.
        header: Settings that identify the dataset, stored in dataset.json.
        contents: Names of the files and folders in `out` that will be written; existing ones are removed.
        force: Whether a complete dataset may be replaced.

    Returns:
        False if the folder already contains the complete dataset of this header and `force` is False; else True.

    Raises:
        FileExistsError: If the folder contains a dataset with another header (without `force`), or files that do not
            belong to a dataset.
    """
    done, partial = out / "dataset.json", out / "dataset.partial.json"
    if done.is_file() and not force:
        found = json.loads(done.read_text())
        if all(found.get(key) == value for key, value in header.items()):
            return False
        different = ", ".join(f"{k} {found.get(k)!r}, requested {v!r}" for k, v in header.items() if found.get(k) != v)
        raise FileExistsError(
            f"{out} contains another dataset: {different}; choose another folder, or replace it with --force"
        )
    if out.exists() and any(out.iterdir()) and not (done.is_file() or partial.is_file()):
        raise FileExistsError(f"{out} is not empty and was not created by this command; choose a new or empty folder")
    if done.is_file():
        ours = read_lines(out / LIST) if (out / LIST).is_file() else []
        require_only(out, set(ours), within=contents)
    out.mkdir(parents=True, exist_ok=True)
    write_json(partial, header)
    done.unlink(missing_ok=True)
    for name in contents:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        (out / name).unlink(missing_ok=True)
    return True


def complete_folder(out: Path, summary: dict[str, Any]) -> None:
    """Marks the dataset in the folder `out` as complete by writing the list of its files and dataset.json.

    Args:
        out: Folder that `prepare_folder` has prepared.
        summary: Content of dataset.json, including the header.
    """
    written = [name for name in files_in(out) if name not in (LIST, "dataset.partial.json")]
    write_text(out / LIST, "".join(f"{name}\n" for name in written))
    write_json(out / "dataset.json", summary)
    (out / "dataset.partial.json").unlink()


def write_json(path: Path, content: Any) -> None:
    """Writes JSON data to an indented file, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")
