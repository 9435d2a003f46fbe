"""The folder of a dataset that Worldsmith writes: complete or absent, and recognized by the header in dataset.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldsmith.files.atomic import write_text
from worldsmith.files.lines import read_lines
from worldsmith.files.writable import files_in, require_only

LIST = ".files"
"""List of the written files, one path per line; only these are removed when the dataset is written again."""


def prepare_folder(out: Path, header: dict[str, Any], contents: Sequence[str], force: bool) -> bool:
    """Prepares `out` for writing; returns False if it contains the complete dataset of this header.

    `contents` names the files and folders to come; those of an earlier dataset are removed. Raises FileExistsError for
    a dataset with another header (unless `force`) and for a folder with other content.
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
    """Marks the dataset as complete: writes `summary`, which includes the header, as dataset.json."""
    written = [name for name in files_in(out) if name not in (LIST, "dataset.partial.json")]
    write_text(out / LIST, "".join(f"{name}\n" for name in written))
    write_json(out / "dataset.json", summary)
    (out / "dataset.partial.json").unlink()


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
