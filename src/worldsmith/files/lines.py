"""Text files that hold one thing a line."""

from __future__ import annotations

from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, without a byte order mark.

    Only line feeds end one, with or without a return before them: other separators may stand in a text. Raises
    ValueError, naming the file, for bytes that are no UTF-8.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]
