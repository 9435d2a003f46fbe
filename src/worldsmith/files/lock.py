"""Locks between processes, which go with the process that holds them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path


def lock(path: Path) -> int | None:
    """A handle that keeps a file or folder locked until it is closed; None while another process has it locked.

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
