"""Locks on a folder that end with the process that has them, and who has one."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

FILE = ".lock"
"""Says who holds the folder; the lock on it is what counts, and is gone with its holder."""


def in_use(folder: Path) -> str | None:
    """Who works in the folder at this moment, in words; None when nobody does. Changes nothing.

    Not for the process that holds it: POSIX takes the lock of a process away when it closes any handle of the file.
    """
    path = folder / FILE
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if try_lock(handle, fcntl.LOCK_SH, path) else holder(path)
    finally:
        os.close(handle)


def try_lock(handle: int, kind: int, path: Path) -> bool:
    """False when another process has the lock. A file system without locks is pointed out, and counts as free."""
    try:
        fcntl.lockf(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        logger.warning("%s cannot be locked (%s): nothing keeps a second run out of this folder", path, error.strerror)
    return True


def holder(path: Path) -> str:
    """Who has written the lock file, in words."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f"process {about['pid']} on {about['host']} has been training in it since {about['started_at']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process trains in it"
