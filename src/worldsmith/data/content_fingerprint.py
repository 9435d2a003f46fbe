"""Short fingerprints of file content, which detect a replaced file at a bounded cost."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from worldsmith.files.remote import is_remote, read_remote, remote_facts

PIECE = 1 << 14
"""Number of bytes read at the start, in the middle and at the end of a file."""
MOST = 1000
"""Max number of files of a dataset that get a fingerprint: the first ones."""
READERS = 8


def file_fingerprint(path: str | Path) -> str:
    """Returns a short fingerprint of a file: 12 hex digits of a hash of its size and three pieces of its content.

    At most 48 KiB are read. The result is "" if the file cannot be read or is not a regular file.

    Args:
        path: Path, or address of a remote file; the result does not depend on where the file is stored.
    """
    if is_remote(str(path)):
        try:
            return remote_fingerprint(str(path))
        except OSError:
            return ""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    except (OSError, ValueError):
        return ""
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return ""
        return hash_pieces(status.st_size, lambda start: os.pread(handle, PIECE, start))
    except OSError:
        return ""
    finally:
        os.close(handle)


@lru_cache(maxsize=65536)
def remote_fingerprint(address: str) -> str:
    size = remote_facts(address).size
    if size is None:
        return hashlib.sha256(read_remote(address)).hexdigest()[:12]
    return hash_pieces(size, lambda start: read_remote(address, start, PIECE))


def hash_pieces(size: int, read: Callable[[int], bytes]) -> str:
    """Returns the fingerprint of a file of `size` bytes; `read` returns the `PIECE` bytes from a byte offset on."""
    digest = hashlib.sha256(str(size).encode())
    for start in (0, max(0, (size - PIECE) // 2), max(0, size - PIECE)):
        digest.update(read(start))
    return digest.hexdigest()[:12]


def file_fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """Returns {path: fingerprint} for the first `MOST` different paths; later paths are ignored."""
    chosen: dict[str, None] = {}
    for path in paths:
        chosen[path] = None
        if len(chosen) == MOST:
            break
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(chosen, pool.map(file_fingerprint, chosen)))
