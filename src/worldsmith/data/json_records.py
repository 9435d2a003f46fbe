"""Dataset files in JSON: one record per line (JSON Lines), or all records in one list."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.json_file import object_of
from worldsmith.files.lines import read_bytes
from worldsmith.files.remote import RemoteFile, is_remote

MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Matches JSON bytes that may contain an unpaired surrogate (invalid Unicode), which Python's parser accepts."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)


def read_lines(file: Path | str) -> Iterator[tuple[int, bytes]]:
    """Yields (1-based line number, bytes) of every non-blank line; gzip is detected from the first bytes.

    Args:
        file: Path, or address of a remote file, which is read in pieces of 16 MiB.

    Raises:
        DataError: If the file cannot be read to its end.
    """
    try:
        with RemoteFile(file) if isinstance(file, str) and is_remote(file) else open(file, "rb", buffering=0) as source:
            raw = io.BufferedReader(source)
            lines = gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(b"\x1f\x8b") else raw
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, OSError) as error:
        raise DataError(f"{file} cannot be read to its end: {error}") from None


def parse_json(text: bytes) -> Any:
    """Returns the value of a JSON record.

    Raises:
        SampleError: bad_json if the text is not valid JSON; bad_record for an unpaired surrogate or a repeated key.
    """
    with suppress(ValueError, RecursionError):
        value = DECODER.decode(text.decode())
        if not MAYBE_SURROGATE.search(text):
            return value
    try:  # slower, and finds out what is wrong
        value, faults = parse_with_repeats(text)
    except (ValueError, RecursionError) as error:
        raise SampleError("bad_json", str(error)) from None
    if (fault := find_repeat(value, faults)) or (MAYBE_SURROGATE.search(text) and (fault := find_surrogate(value))):
        raise fault
    return value


def parse_with_repeats(text: bytes) -> tuple[Any, dict[int, SampleError]]:
    """Parses JSON that may have objects with repeated keys.

    Returns:
        The value, and an error for each dict in it that had a repeated key, by the `id()` of the dict.

    Raises:
        ValueError: If the text is not valid JSON.
    """
    faults: dict[int, SampleError] = {}

    def repeated(found: dict[str, Any], key: str) -> None:
        faults.setdefault(id(found), SampleError("bad_record", f"the key '{key}' occurs twice"))

    return json.loads(text, object_pairs_hook=partial(object_of, repeated=repeated)), faults


def find_repeat(value: Any, faults: Mapping[int, SampleError]) -> SampleError | None:
    """Returns the error of the first dict in `value` that had a repeated key; None if no dict had one.

    Args:
        value: Parsed JSON value.
        faults: Errors by the `id()` of the dict, from `parse_with_repeats`.
    """
    if not faults or not isinstance(value, (dict, list)):
        return None
    if fault := faults.get(id(value)):
        return fault
    inside = value.values() if isinstance(value, dict) else value
    return next((fault for item in inside if (fault := find_repeat(item, faults))), None)


def first_record(file: Path | str) -> Any:
    """Returns the first valid record of a `.jsonl[.gz]` file; None if it has another suffix or no valid record."""
    if ".jsonl" not in os.path.basename(file):
        return None
    for _, line in read_lines(file):
        with suppress(SampleError):
            return parse_json(line)
    return None


def find_surrogate(value: Any) -> SampleError | None:
    """Returns a SampleError if a string in the JSON value `value` contains an unpaired surrogate; else None."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        return SampleError("bad_record", f"a string contains {half}, which is half of a surrogate pair")
    return None


def read_list(file: Path | str, *, wrappers: Sequence[str] = (), single: str = "") -> list[Any]:
    """Reads a JSON file that contains a list of records, or an object with such a list.

    Args:
        file: Path or address of a JSON file.
        wrappers: Possible keys of the list, if the file may contain an object.
        single: Key by which an object is recognized as a single record.

    Returns:
        The records. A record with an unpaired surrogate or a repeated key is replaced by a SampleError.

    Raises:
        DataError: If the file is not valid JSON or contains no such list.
    """
    try:
        text = read_bytes(file)
        value, faults = parse_with_repeats(text)
        records = records_in(value, wrappers, single)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as JSON: {error}") from None
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    if isinstance(value, dict) and records != [value] and (fault := faults.get(id(value))):
        raise DataError(f"{file}: {fault.detail}")
    if faults:
        records = [find_repeat(record, faults) or record for record in records]
    if MAYBE_SURROGATE.search(text):
        records = [
            record if isinstance(record, SampleError) else find_surrogate(record) or record for record in records
        ]
    return records


def records_in(value: Any, wrappers: Sequence[str] = (), single: str = "") -> list[Any]:
    """Returns the list of records in a JSON value: the value itself, a list in it, or a single record.

    Args:
        value: Parsed JSON value. A list in it is not copied.
        wrappers: Possible keys of the list, if the value may be an object.
        single: Key by which an object is recognized as a single record.

    Raises:
        DataError: If the value contains no such list.
    """
    if isinstance(value, list):
        return value
    expected = "a list of records"
    if wrappers:
        expected += f", an object with such a list as {' or '.join(map(repr, wrappers))}, or a record with '{single}'"
    if not isinstance(value, dict) or not wrappers:
        raise DataError(f"expected {expected}, found {type(value).__name__}")
    if single in value:
        return [value]
    lists = [name for name in wrappers if isinstance(value.get(name), list)]
    if len(lists) == 1:
        return value[lists[0]]  # type: ignore[no-any-return]
    found = f"the lists {', '.join(lists)}" if lists else f"the keys {', '.join(list(value)[:8]) or '(none)'}"
    raise DataError(f"expected {expected}, found an object with {found}")
