"""Whether files can be written in a place, tried before there is work that would be lost."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from worldsmith.files.errors import UserError

PROBE_BYTES = 1 << 16
"""Written to see whether a disk takes them: an empty file fits on a full one."""


def nearest_folder(path: Path) -> Path:
    """The path itself or the first of those above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def require_writable(folder: Path, *, what: str = "") -> None:
    """Tries whether files can be made in `folder`, which need not be there yet; nothing is left behind.

    Raises UserError if not; `what` says, before the path, what the folder is.
    """
    home = nearest_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=home) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        where = "" if home == folder else f": {home}"
        raise UserError(f"{what}{folder} cannot be written: {error.strerror or error}{where}") from None
