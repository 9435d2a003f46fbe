"""Data set files: JSON, one record per line or all in one list."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from worldsmith.data.stream.errors import DataError, SampleError

MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""What JSON must hold to hold half of a surrogate pair, which Python's reader lets through."""


def read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, text) of every line that is not blank; plain or gzip, told from the first bytes."""
    try:
        with open(file, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if zipped else open(file, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, OSError) as error:
        raise DataError(f"{file} cannot be read to its end: {error}") from None


def parse_json(text: bytes) -> Any:
    """Raises SampleError: bad_json; bad_record for a text that is no Unicode."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleError("bad_json", str(error)) from None
    if MAYBE_SURROGATE.search(text) and (fault := no_unicode(value)):
        raise fault
    return value


def first_record(file: Path) -> Any:
    """The first record of a file of lines that can be read; None where there is none."""
    if ".jsonl" not in file.name:
        return None
    for _, line in read_lines(file):
        with suppress(SampleError):
            return parse_json(line)
    return None


def no_unicode(value: Any) -> SampleError | None:
    """What is wrong with a value that holds half of a surrogate pair in any of its texts."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        return SampleError("bad_record", f"a text holds {half}, which is half of a surrogate pair")
    return None


def read_list(file: Path, *, wrappers: Sequence[str] = (), single: str = "") -> list[Any]:
    """The records of a file that is one JSON list; in place of one that is no Unicode, what is wrong with it.

    An object will do that has the list under one of `wrappers`, or one that has the key `single` and so is a record.
    Raises DataError for anything else.
    """
    try:
        text = file.read_bytes()
        records = records_in(json.loads(text), wrappers, single)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON: {error}") from None
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    return [no_unicode(record) or record for record in records] if MAYBE_SURROGATE.search(text) else records


def records_in(value: Any, wrappers: Sequence[str] = (), single: str = "") -> list[Any]:
    """The list of records that a JSON value is or holds, itself; see `read_list`. Raises DataError."""
    if isinstance(value, list):
        return value
    expected = "a list of records"
    if wrappers:
        expected += f", or an object that has one as {' or '.join(map(repr, wrappers))} or is a record with '{single}'"
    if not isinstance(value, dict) or not wrappers:
        raise DataError(f"expected {expected}, found {type(value).__name__}")
    if single in value:
        return [value]
    lists = [name for name in wrappers if isinstance(value.get(name), list)]
    if len(lists) == 1:
        return value[lists[0]]  # type: ignore[no-any-return]
    found = f"the lists {', '.join(lists)}" if lists else f"the keys {', '.join(list(value)[:8]) or '(none)'}"
    raise DataError(f"expected {expected}, found an object with {found}")
