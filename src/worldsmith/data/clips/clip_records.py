"""Where the records of clips come from: a file of lines, or shards (`shard_records`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsmith.data.json_records import first_record, parse_json, read_lines
from worldsmith.data.shards.addresses import shard_pattern
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection

FILE_NAMES = [
    folder + name + ending
    for folder in ("train/", "")
    for name in ("video_dataset_file.jsonl",)
    for ending in ("", ".gz")
]


@dataclass(frozen=True, slots=True)
class ClipRecord:
    """What is known of a clip before it is opened."""

    facts: dict[str, Any]
    """`uuid` and `t2w_windows`, perhaps `duration`, `width`, `height`, `nb_frames`; their types are checked."""
    path: str
    relative_path: str
    line: int | None = None
    mark: str = ""
    """Of what the clip holds; "" = to be made from the file."""


def line_records(file: Path) -> Iterator[ClipRecord | Rejection]:
    """One for each line. Raises DataError when the file cannot be read."""
    seen: set[str] = set()
    for number, line in read_lines(file):
        try:
            record = check_record(parse_json(line))
            if record["uuid"] in seen:
                raise SampleError("bad_record", f"the uuid '{record['uuid']}' was used before")
        except SampleError as error:
            yield Rejection(f"{file.name}:{number}", error.reason, error.detail, str(file), number)
            continue
        seen.add(record["uuid"])
        yield ClipRecord(record, str(file.parent / record["vision_path"]), record["vision_path"], number)


def is_clips(path: str) -> bool:
    """Whether shards, a folder, or a file of lines hold such a data set."""
    if has_file(path) or shard_pattern(path):
        return True
    return isinstance(first := first_record(Path(path)), dict) and "vision_path" in first


def has_file(folder: str) -> bool:
    return any(Path(folder, name).is_file() for name in FILE_NAMES)


def find_file(path: str) -> Path:
    """The data set file at `path`, or in the folder `path`."""
    if not path:
        raise DataError("dataset.path is empty; give the .jsonl file or its folder (recipes read DATASET_PATH)")
    given = Path(path)
    if given.is_file():
        return given
    if not given.is_dir():
        raise DataError(f"{given} does not exist; dataset.path must be a .jsonl file or its folder, or .tar shards")
    for name in FILE_NAMES:
        if (given / name).is_file():
            return given / name
    raise DataError(f"{given} has no data set file; looked for {', '.join(FILE_NAMES)}, *.tar")


def check_record(record: Any) -> dict[str, Any]:
    """The record, its types checked. Raises SampleError: bad_record, remote_path."""
    if not isinstance(record, dict):
        raise SampleError("bad_record", f"expected an object, found {type(record).__name__}")
    for name in ("uuid", "vision_path"):
        if not (isinstance(record.get(name), str) and record[name]):
            raise SampleError("bad_record", f"'{name}' must be text, found {record.get(name)!r}")
    if "\0" in record["vision_path"]:
        raise SampleError("bad_record", f"'vision_path' holds a NUL, found {record['vision_path']!r}")
    for name in ("duration", "width", "height", "nb_frames"):
        value = record.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise SampleError("bad_record", f"'{name}' must be a number, found {value!r}")
        if value is None:
            record.pop(name, None)
    windows = record.get("t2w_windows")
    if not (isinstance(windows, list) and windows):
        raise SampleError("bad_record", f"'t2w_windows' must be a list with at least one window, found {windows!r}")
    if "://" in record["vision_path"]:
        raise SampleError(
            "remote_path",
            f"'{record['vision_path']}' is remote; copy the clip beside the data set file and name its relative path",
        )
    return record
