"""Folders that somebody is reading, so that their owner does not remove them meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from worldsmith.files.lock import lock

_leases: dict[Path, int] = {}


def lease(file: Path) -> bool:
    """Lets `file`, and what its owner keeps with it, stay until `release_leases` or the end of this process.

    False when it is gone already. A file system without locks gives none, and the file may go.
    """
    if file in _leases:
        return True
    try:
        handle = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # whoever reads it says what is wrong with it
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        gone = not file.exists() or not os.path.samestat(os.fstat(handle), file.stat())
    except OSError as error:
        gone = error.errno in (errno.EWOULDBLOCK, errno.ENOENT)  # it is being removed
    if gone:
        os.close(handle)
        return False
    _leases[file] = handle
    return True


def release_leases() -> None:
    """Gives up what this process has leased."""
    while _leases:
        os.close(_leases.popitem()[1])


def take_unleased(file: Path) -> int | None:
    """A handle that keeps new readers away until it is closed; None while somebody has a lease.

    Where there is no such file, or a file system knows no locks, nobody is kept away. Raises OSError for a file that
    cannot be opened.
    """
    return lock(file if file.exists() else Path(os.devnull))
