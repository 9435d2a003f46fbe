"""Reads config files; errors of the file itself have a source position."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from worldsmith.config.errors import ConfigError, Place, Problem

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 64
MAX_VALUES = 10_000
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|' r"'''.*?'''|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'|#[^\n]*|[\[\]{}=,.\n]",
    re.DOTALL,
)


def read_config_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a UTF-8 config file, without a byte order mark and with LF line ends.

    Raises:
        ConfigError: If the file is missing, is a folder, cannot be read, is larger than 4 MiB or is not UTF-8.
    """
    name = os.fspath(path)
    try:
        status = os.stat(name)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise _error(name, f"this is {kind}, not a config file")
        if status.st_size > MAX_BYTES:
            raise _error(
                name, f"the file has {status.st_size / 2**20:.0f} MiB; a config may have {MAX_BYTES // 2**20} MiB"
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


def check_extent(text: str, file: str) -> None:
    """Raises ConfigError, with the position, for TOML or JSON text that is nested too deeply or has too many values.

    It is called before parsing, since the parsers recurse with the depth and are slow for long dotted keys.

    Args:
        text: TOML or JSON.
        file: File name for messages.
    """
    depth = dots = count = 0
    for token in _TOKEN.finditer(text):
        letter = token[0]
        depth += (letter in "[{") - (letter in "]}")
        dots = 0 if letter in "\n=," else dots + (letter == ".")
        count += letter in "[{=,"
        if depth + dots > MAX_DEPTH or count > MAX_VALUES:
            start = text.rfind("\n", 0, token.start()) + 1
            line = Place(
                file, text.count("\n", 0, start) + 1, token.start() - start + 1, 1, text[start:].split("\n", 1)[0]
            )
            raise ConfigError([too_deep(line) if count <= MAX_VALUES else too_many(line)])


def too_deep(place: Place) -> Problem:
    return Problem("", f"nested more than {MAX_DEPTH} levels deep", place=place)


def too_many(place: Place) -> Problem:
    advice = "store the data in a separate file, and the path of that file in the config"
    return Problem("", f"more than {MAX_VALUES} values; a config usually has a few hundred", hint=advice, place=place)


def _error(file: str, message: str) -> ConfigError:
    return ConfigError([Problem("", message, place=Place(file))])
