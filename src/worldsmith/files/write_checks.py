"""Checks before files are written or replaced: the disk accepts them, and no other file is overwritten."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from worldsmith.files.errors import UserError

PROBE_BYTES = 1 << 16
"""Size in bytes of the test file that is written to find a full disk, on which an empty file could still be created."""
SHOWN = 5


def nearest_folder(path: Path) -> Path:
    """Returns `path` if it exists, else its nearest existing parent folder.

    Args:
        path: File or folder.
    """
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def require_writable(folder: Path, *, what: str = "") -> None:
    """Raises UserError if files cannot be written in `folder`; tests it with a temporary file of 64 KiB.

    If `folder` does not exist, its nearest existing parent folder is tested.

    Args:
        folder: Folder that will be written.
        what: Text before the path in the message, with a trailing space, such as "the run folder ".

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
    """Returns the paths, relative to `folder`, of all files below a folder, sorted.

    Args:
        folder: Existing folder.
    """
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def require_only(
    folder: Path | str,
    own: Collection[str],
    *,
    within: Collection[str] | None = None,
    found: Iterable[str] | None = None,
) -> None:
    """Raises FileExistsError if `folder` contains files other than `own`, before the folder is replaced.

    Args:
        folder: Existing folder, or the address of a remote folder.
        own: Relative paths of the files that may be replaced.
        within: Names of the files and subfolders of `folder` to check; None: all.
        found: Relative paths of the files in `folder`; None: they are listed, which only a local folder permits.

    Raises:
        FileExistsError: If there are other files; the message lists some of them.
    """
    others = [name for name in (files_in(Path(folder)) if found is None else found) if name not in own]
    others = [name for name in others if within is None or Path(name).parts[0] in within]
    if others:
        shown = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        raise FileExistsError(
            f"{folder} cannot be replaced, because it contains other files: {shown}. Move these files first"
        )
