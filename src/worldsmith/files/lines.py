"""Text files with one record per line."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path

from worldsmith.files.remote import is_remote, read_remote


def read_bytes(path: Path | str) -> bytes:
    """Returns the content of a local file or, through the cache on disk, of the remote file at an address (text)."""
    return read_remote(path) if isinstance(path, str) and is_remote(path) else Path(path).read_bytes()


def read_lines(path: Path | str) -> list[str]:
    """Reads the lines of a UTF-8 text file, without line ends and without a byte order mark.

    Only LF and CRLF end a line: other Unicode line separators are part of the text.

    Raises:
        ValueError: With the file name, if the file is not UTF-8.
        OSError: If the file cannot be read.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def require_regular(path: Path | str) -> None:
    """Raises OSError if `path` is a pipe or a device, because reading it could block forever."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "expected a regular file, found a pipe or a device", str(path))


def append_line(path: Path, line: str) -> None:
    """Appends `line` and a line feed to a file, which is created if it does not exist.

    If the file does not end with a line feed, one is written before the line. The line is written with one call, so
    that another process never reads a part of it.

    Args:
        path: Text file; its folder must exist.
        line: Line without a line feed.

    Raises:
        OSError: If the disk is full or the file cannot be written; the file is then unchanged.
    """
    with open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        start = "" if file.read(1) in (b"", b"\n") else "\n"
        append(file, f"{start}{line}\n".encode())


def append(file: FileIO, data: bytes) -> None:
    """Appends `data` to an unbuffered file with one write call.

    Args:
        file: Unbuffered file that is open for writing.
        data: Bytes to append.

    Raises:
        OSError: If not all bytes were written; the file then has its old length.
    """
    end = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) != len(data):  # the disk became full during the write
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise
