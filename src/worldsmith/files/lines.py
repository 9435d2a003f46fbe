"""Text files that hold one thing a line."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a UTF-8 text file, without a byte order mark.

    Only line feeds end one, with or without a return before them: other separators may stand in a text. Raises
    ValueError, naming the file, for bytes that are no UTF-8.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def require_regular(path: Path) -> None:
    """Raises OSError for a FIFO or a device: reading one would wait, or go on, for ever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "expected a regular file, found a pipe or a device", str(path))


def append_line(path: Path, line: str) -> None:
    """Adds a whole line to a file that is made if need be; a last line that was cut off is ended first."""
    with open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        start = "" if file.read(1) in (b"", b"\n") else "\n"
        append(file, f"{start}{line}\n".encode())


def append(file: FileIO, data: bytes) -> None:
    """Adds all of it at once: a reader never sees a half of it. Or raises OSError and leaves the file as it was."""
    end = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) != len(data):  # the disk was full after a part of it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise
