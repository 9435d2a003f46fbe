"""What the records of a chat data set tell before a picture is opened: rates, ids, and where the media lie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.data.data_report import DataFlag, flag_records

if TYPE_CHECKING:
    from worldsmith.data.conversations.datasets.chat_dataset import ChatFile

LOOKED_AT = 100
"""Media whose files are looked for; where they all are missing, the others will be."""
NO_FPS = "no_video_fps"
FOLLOWS = {
    "optional": "state no video_fps: the rate of each file is used",
    "require": "state no video_fps, which video_fps = 'require' asks for",
}


def flags_of(dataset: ChatFile) -> Iterator[DataFlag]:
    yield from rates(dataset)
    names = Counter(entry.name for entry in dataset.entries if entry.name)
    repeated = [{"index": entry.number, "key": entry.name} for entry in dataset.entries if names[entry.name] > 1]
    said = "have an id that others have, too: further uses are called id#2, id#3"
    yield from flag_records("ids_repeated", repeated, dataset.num_records, said)
    unnamed = [{"index": entry.number, "key": entry.key} for entry in dataset.entries if not entry.name]
    said = "have no id and are called by their place in the file"
    yield from flag_records("ids_missing", unnamed, dataset.num_records, said)
    yield from media_elsewhere(dataset)


def rates(dataset: ChatFile) -> Iterator[DataFlag]:
    """The records with a video that do not state its rate, where that is looked at."""
    policy = dataset.config.video_fps
    if policy == "probe":
        return
    shown = [entry for entry in dataset.entries if entry.shows_video]
    missing: list[dict[str, Any]] = [
        {"index": entry.number, "key": entry.key} for entry in shown if stated_rate(entry.record) is None
    ]
    refused = [{"index": r.index, "key": r.key} for r in dataset.rejections if r.reason == NO_FPS]
    missing = sorted([*missing, *refused], key=lambda one: one["index"])
    yield from flag_records(NO_FPS, missing, len(shown) + len(refused), f"records with a video {FOLLOWS[policy]}")


def stated_rate(record: Any) -> Any:
    return record.get("video_fps") if isinstance(record, dict) else None


def media_elsewhere(dataset: ChatFile) -> Iterator[DataFlag]:
    """Media that are not where the records say and are one folder deeper, or one higher."""
    files = list(islice(dict.fromkeys(chain.from_iterable(entry.files for entry in dataset.entries)), LOOKED_AT))
    missing = [file for file in files if not os.path.exists(file)]
    root = found_root(dataset.media_root, missing)
    if root is not None:
        of = {file: entry for entry in reversed(dataset.entries) for file in entry.files}
        found = [{"index": of[file].number, "key": of[file].key, "detail": file} for file in missing]
        said = f"images and videos that were looked for are not there, and {root} has them: set media_root = '{root}'"
        yield from flag_records("media_elsewhere", found, len(files), said)


def found_root(root: Path, missing: Sequence[str]) -> Path | None:
    """A folder in `root`, or the one above it, that has all of the missing files by the same relative paths."""
    inside = [os.path.relpath(file, root) for file in missing if Path(file).is_relative_to(root)]
    if not inside or len(inside) < len(missing):
        return None
    folders = sorted(place for place in root.iterdir() if place.is_dir()) if root.is_dir() else []
    places = [*folders, root.absolute().parent]
    return next((place for place in places if all((place / name).exists() for name in inside)), None)
