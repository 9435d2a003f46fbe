"""Locks that end with the process that has them: on one file, on files that are being read, on a run folder."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

_leases: dict[Path, int] = {}
logger = logging.getLogger(__name__)
LOCK_FILE = ".lock"
"""File in a run folder that describes the process that trains in it. That process holds a POSIX lock on the file."""


def lock(path: Path) -> int | None:
    """Opens a file or folder and locks it exclusively (flock), without waiting.

    On a file system that does not support locks, the path is only opened.

    Args:
        path: Existing file or folder.

    Returns:
        File descriptor that keeps the lock until it is closed; None if another process has the lock.

    Raises:
        OSError: If `path` cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(handle)
            return None
    return handle


def unlock(handle: int) -> None:
    """Releases the lock of a file descriptor from `lock`, also in processes that were forked meanwhile; closes it."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def lease(file: Path) -> bool:
    """Takes a shared lock (a lease) on `file`, so that other processes do not remove it.

    The lease lasts until `release_leases` or the end of the process. It only protects against processes that call
    `take_unleased` before they remove the file. On a file system without locks the file is not protected.

    Args:
        file: File that this process will read.

    Returns:
        False if the file has been removed or is being removed; else True.
    """
    if file in _leases:
        return True
    try:
        handle = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # the code that reads it reports what is wrong with it
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
    """Releases all locks that this process has taken with `lease`."""
    while _leases:
        os.close(_leases.popitem()[1])


def take_unleased(file: Path) -> int | None:
    """Locks `file` exclusively so that it can be removed, unless a process has a lease on it (see `lease`).

    Args:
        file: File to remove. If it does not exist, the returned descriptor locks nothing.

    Returns:
        File descriptor that prevents new leases until it is closed; None if a process has a lease.

    Raises:
        OSError: If the file cannot be opened.
    """
    return lock(file if file.exists() else Path(os.devnull))


def in_use(folder: Path) -> str | None:
    """Returns a description of the process that trains in a run folder; changes no file.

    Do not call this function in the process that trains in `folder`: POSIX releases the lock of a process when the
    process closes any file descriptor of the lock file, as this function does.

    Args:
        folder: Run folder.

    Returns:
        Text such as "process 12 on HOST has been training in it since …"; None if no process has locked the folder.
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
    """Tries to lock an open file without waiting (fcntl).

    Args:
        handle: File descriptor.
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.
        path: Path of the file, for the warning.

    Returns:
        False if another process has the lock, else True; also True, after a warning, if the file system has no locks.
    """
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
    """Returns a description of the process that wrote a lock file, for messages.

    Args:
        path: Lock file of a run folder.

    Returns:
        Text such as "process 12 on HOST has been training in it since …"; without details if the file is invalid.
    """
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['pid']} on {about['host']} has been training in it since {about['started_at']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process trains in it"
