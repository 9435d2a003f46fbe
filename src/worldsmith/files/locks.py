"""Locks that end with the process that holds them: on one file, on files that are being read, on a run folder."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from pathlib import Path

_leases: dict[Path, int] = {}
logger = logging.getLogger(__name__)
LOCK_FILE = ".lock"
"""File that names the process that locks the folder; the lock itself is a POSIX lock, which ends with the process."""


def lock(path: Path) -> int | None:
    """Returns a handle that keeps a file or folder locked until it is closed; None while another process has it locked.

    A file system without locks keeps nobody away. Raises OSError for what cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(handle)
            return None
    return handle


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
    """Releases all leases of this process."""
    while _leases:
        os.close(_leases.popitem()[1])


def take_unleased(file: Path) -> int | None:
    """Returns a handle that keeps new readers away until it is closed; None while somebody has a lease.

    Where there is no such file, or a file system knows no locks, nobody is kept away. Raises OSError for a file that
    cannot be opened.
    """
    return lock(file if file.exists() else Path(os.devnull))


def in_use(folder: Path) -> str | None:
    """Returns a description of the process that has locked the folder; None if it is not locked. Changes nothing.

    Do not call it in the locking process: POSIX releases its lock when it closes any handle of the file.
    """
    path = folder / LOCK_FILE
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if try_lock(handle, fcntl.LOCK_SH, path) else holder(path)
    finally:
        os.close(handle)


def try_lock(handle: int, kind: int, path: Path) -> bool:
    """Tries to lock; returns False if another process has the lock. Without lock support it warns and returns True."""
    try:
        fcntl.lockf(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        logger.warning(
            "%s cannot be locked (%s): a second run in this folder will not be prevented", path, error.strerror
        )
    return True


def holder(path: Path) -> str:
    """Returns a description of the process that wrote the lock file."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['pid']} on {about['host']} has been training in it since {about['started_at']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process trains in it"
