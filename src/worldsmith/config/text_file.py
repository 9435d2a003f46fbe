"""Reading a config file: what can be wrong with the file itself, said in the terms of the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from worldsmith.config.errors import ConfigError, Place, Problem

MAX_BYTES = 4 * 2**20


def read_config_text(path: str | os.PathLike[str]) -> str:
    """The text of a config file, without a byte-order mark and with ``\\n`` line ends.

    Raises ConfigError for a file that is missing, a folder, unreadable, too large, or not UTF-8 (with the line).
    """
    name = os.fspath(path)
    try:
        status = os.stat(name)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise _error(name, f"this is {kind}, not a config file")
        if status.st_size > MAX_BYTES:
            raise _error(
                name, f"the file has {status.st_size / 2**20:.0f} MiB; a config has at most {MAX_BYTES // 2**20}"
            )
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _error(name, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8", "replace")
        line, column = good.count("\n") + 1, len(good) - (good.rfind("\n") + 1) + 1
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError([Problem("", message, place=Place(name, line, column))]) from None
    return text.replace("\r\n", "\n")


def _error(file: str, message: str) -> ConfigError:
    return ConfigError([Problem("", message, place=Place(file))])
