"""Checks before files are written or replaced: the disk accepts them, and no other file is overwritten."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from worldsmith.files.errors import UserError

PROBE_BYTES = 1 << 16
"""Content of a test file that is written to check free disk space: an empty file fits on a full disk."""
SHOWN = 5


def nearest_folder(path: Path) -> Path:
    """Returns `path` if it exists, else its nearest existing parent folder."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def require_writable(folder: Path, *, what: str = "") -> None:
    """Checks that files can be created in `folder` by writing a temporary file of 64 KiB, which is removed again.

    If `folder` does not exist, its nearest existing parent is tested.

    Args:
        folder: Folder that will be written.
        what: Text for the message before the path, with a trailing space, such as "the run folder ".

    Raises:
        UserError: If the folder cannot be written.
    """
    home = nearest_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=home) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        where = "" if home == folder else f": {home}"
        raise UserError(f"[E127] {what}{folder} cannot be written: {error.strerror or error}{where}") from None


def files_in(folder: Path) -> list[str]:
    """Returns the relative paths of all files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def require_only(folder: Path, own: Collection[str], *, within: Collection[str] | None = None) -> None:
    """Raises FileExistsError if `folder` contains files other than `own`, before the folder is replaced.

    Args:
        folder: Existing folder.
        own: Relative paths of the files that may be replaced.
        within: Names of entries of `folder` to which the check is limited; None: all files.
    """
    others = [name for name in files_in(folder) if name not in own]
    others = [name for name in others if within is None or Path(name).parts[0] in within]
    if others:
        shown = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        raise FileExistsError(f"{folder} contains files that were not written with it: {shown}; move them away first")
