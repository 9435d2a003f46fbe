"""Reads records of clips from a file with one JSON object per line, or from WebDataset shards."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from worldsmith.data.json_records import first_record, parse_json, read_lines
from worldsmith.data.shards.addresses import TAR, find_shards, part_address, shard_pattern, short_names
from worldsmith.data.shards.tar_index import Member, TarIndex, read_indices
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.files.remote import RemoteError, file_exists, is_remote, join_address, remote_facts

FILE_NAMES = [f"{folder}video_dataset_file.jsonl{ending}" for folder in ("train/", "") for ending in ("", ".gz")]
VIDEOS = ("mp4", "mov", "mkv", "webm", "avi", "m4v", "mpg", "mpeg", "gif")
MEMBER_NAME = re.compile(r"((?:.*/|)[^.]+)\.([^/]*)", re.DOTALL)
"""Matches the name of a tar member; its groups are key and suffix, split at the first dot as in WebDataset."""
SHARD_FACTS = ("uuid", "duration", "width", "height", "nb_frames")
LAST = -1
"""Value of end_frame for a window up to the last frame of the clip."""


@dataclass(frozen=True, slots=True)
class ClipRecord:
    """Record of a clip in a dataset file or shard, with the clip's path and windows; the clip is not opened."""

    facts: dict[str, Any]
    """Values of the record: `uuid`, `t2w_windows`, optionally `duration`, `width`, `height`, `nb_frames`."""
    path: str
    """Path of the clip, or address of its tar member."""
    relative_path: str
    """Path of the clip in the dataset; independent of the location of the dataset."""
    line: int | None = None
    """Line number in the dataset file; None in a shard."""
    mark: str = ""
    """Fingerprint of the content of the clip; "" = computed from the file."""


def is_clips(path: str) -> bool:
    """Returns whether a path is a dataset of clips: tar shards, a folder with a dataset file, or a dataset file."""
    if find_in(path) is not None or shard_pattern(path):
        return True
    return isinstance(first := first_record(path), dict) and "vision_path" in first


def find_in(folder: str) -> str | None:
    """Returns the path or address of the first of `FILE_NAMES` in a folder; None if no file exists.

    Raises:
        DataError: If the storage of the folder cannot be reached or denies access.
    """
    if is_remote(folder) and (".json" in posixpath.basename(folder) or folder.endswith(TAR)):
        return None
    try:
        return next(filter(file_exists, (join_address(folder, name) for name in FILE_NAMES)), None)
    except RemoteError as error:
        raise DataError(str(error)) from None


def find_file(path: str) -> str:
    """Returns the dataset file at `path`, or one of `FILE_NAMES` in the folder `path`; DataError if no file exists."""
    if not path:
        raise DataError("dataset.path is empty; set it to the .jsonl file or its folder (recipes read DATASET_PATH)")
    if (found := find_in(path)) is not None:
        return found
    given = path.removeprefix("file://")
    if os.path.isfile(given) or (is_remote(path) and ".json" in posixpath.basename(path)):
        return given
    if not os.path.isdir(given) and not is_remote(path):
        raise DataError(f"{given} does not exist; dataset.path must be a .jsonl file or its folder, or .tar shards")
    raise DataError(f"{given} has no dataset file; expected {', '.join(FILE_NAMES)} or *.tar")


def line_records(file: str, *, check_uuids: bool = True) -> Iterator[ClipRecord | Rejection]:
    """Yields the clip record of each line of a dataset file; a rejection if the line is not a valid record.

    Args:
        file: Path or address of the dataset file. Paths of clips are relative to its folder.
        check_uuids: Whether a record whose uuid has occurred before is rejected; all uuids are then kept in memory.

    Raises:
        DataError: If the file cannot be read.
    """
    seen: set[str] = set()
    folder, name = os.path.split(file)
    remote_facts.cache_clear()  # files may have been replaced since this process has read another dataset
    for number, line in read_lines(file):
        try:
            record = check_record(parse_json(line))
        except SampleError as error:
            yield Rejection(f"{name}:{number}", error.reason, error.detail, file, number)
            continue
        if check_uuids:
            if record["uuid"] in seen:
                yield repeated_uuid(file, number, record["uuid"])
                continue
            seen.add(record["uuid"])
        yield ClipRecord(record, join_address(folder, record["vision_path"]), record["vision_path"], number)


def repeated_uuid(file: str, line: int, uuid: str) -> Rejection:
    """Returns the rejection of the record in a line of a dataset file whose uuid an earlier record has."""
    name = f"{os.path.basename(file)}:{line}"
    return Rejection(name, "bad_record", f"the uuid '{uuid}' already occurred", file, line)


def check_record(record: Any) -> dict[str, Any]:
    """Checks the keys and types of a clip record, removes null values from it in place, and returns it.

    Raises:
        SampleError: bad_record if a key is missing or has the wrong type.
    """
    if not isinstance(record, dict):
        raise SampleError("bad_record", f"expected an object, found {type(record).__name__}")
    for name in ("uuid", "vision_path"):
        if not (isinstance(record.get(name), str) and record[name]):
            raise SampleError("bad_record", f"'{name}' must be a non-empty string, found {record.get(name)!r}")
    if "\0" in record["vision_path"]:
        raise SampleError("bad_record", f"'vision_path' contains a NUL character, found {record['vision_path']!r}")
    for name in ("duration", "width", "height", "nb_frames"):
        value = record.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise SampleError("bad_record", f"'{name}' must be a number, found {value!r}")
        if value is None:
            record.pop(name, None)
    windows = record.get("t2w_windows")
    if not (isinstance(windows, list) and windows):
        raise SampleError("bad_record", f"'t2w_windows' must be a list with at least one window, found {windows!r}")
    return record


@dataclass(slots=True)
class ShardSample:
    """Sample of a WebDataset shard: consecutive tar members whose names have the same key (the part before a dot)."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)
    """Members by suffix, such as "mp4"; of several members with the same suffix the first one."""
    repeated: str = ""
    """First suffix that two members of the sample have; "" = all suffixes are different."""

    def video(self) -> Member:
        """Returns the video of the sample; raises SampleError without one, or if two members have the same suffix."""
        if self.repeated:
            raise SampleError("bad_record", f"two members are named {self.key}.{self.repeated}")
        for ending in VIDEOS:
            if ending in self.members:
                return self.members[ending]
        found = ", ".join(self.members)
        raise SampleError("missing_file", f"the sample has no video ({', '.join(VIDEOS)}), found only {found}")


def shard_records(pattern: str) -> Iterator[ClipRecord | Rejection]:
    """Yields the clip record of each sample of WebDataset shards; a rejection for a damaged sample or shard.

    A sample has the consecutive members `KEY.mp4` and `KEY.json` or `KEY.txt`.

    Args:
        pattern: Path or URL of the shards, with wildcards.

    Raises:
        DataError: If a shard cannot be reached, or no shard can be read.
    """
    files = find_shards(pattern)
    faults: list[str] = []
    for index, name in zip(read_indices(files), short_names(files)):
        if index.fault is not None and not index.members:
            faults.append(f"{index.file}: {index.fault[1]}")
        seen: set[str] = set()
        for sample in samples_of(index):
            uuid, first = f"{name}/{sample.key}", next(iter(sample.members.values()))
            place = part_address(index.file, first.start, first.size)
            try:
                if sample.key in seen:
                    raise SampleError("bad_record", f"the key '{sample.key}' already occurred in this shard")
                yield record_of(sample, uuid, index.file, name)
            except SampleError as error:
                again = f"@{first.start}" if sample.key in seen else ""
                yield Rejection(uuid + again, error.reason, error.detail, place)
            seen.add(sample.key)
        if index.fault is not None:
            offset, why = index.fault
            yield Rejection(f"{name}@{offset}", "damaged_shard", why, index.file)
    if len(faults) == len(files):
        raise DataError(
            f"{pattern}: none of the {len(files)} shards can be read: {faults[0]}. Copy or download the shards again"
        )


def samples_of(index: TarIndex) -> Iterator[ShardSample]:
    """Yields the samples of an indexed tar shard in order; members without a suffix are skipped."""
    sample: ShardSample | None = None
    for member in index.members:
        if (parts := MEMBER_NAME.fullmatch(member.name)) is None:
            continue
        key, ending = parts[1], parts[2].lower()
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = ShardSample(key)
        if ending in sample.members:
            sample.repeated = ending
        sample.members.setdefault(ending, member)
    if sample is not None:
        yield sample


def record_of(sample: ShardSample, uuid: str, file: str, name: str) -> ClipRecord:
    """Returns the clip record of a shard sample.

    Args:
        sample: Sample with a video member and a `.json` or `.txt` member.
        uuid: Value of `uuid` in the record.
        file: Path or URL of the shard.
        name: Name of the shard, unique in the dataset and independent of its location.

    Raises:
        SampleError: missing_file, no_caption, bad_json or bad_record.
    """
    video = sample.video()
    facts: dict[str, Any] = {}
    if "json" in sample.members:
        facts = parse_json(text_of(sample.members["json"]).encode())
        if not isinstance(facts, dict):
            raise SampleError("bad_record", f"{sample.key}.json: expected an object, found {type(facts).__name__}")
    if "txt" in sample.members and "t2w_windows" not in facts:
        facts = {"caption": text_of(sample.members["txt"]), **facts}
    if not facts:
        raise SampleError("no_caption", f"{sample.key}.json or .txt is missing; found {', '.join(sample.members)}")
    record = {fact: facts[fact] for fact in SHARD_FACTS if fact in facts}
    captions = {key: value for key, value in facts.items() if key not in SHARD_FACTS and isinstance(value, (str, dict))}
    windows = facts.get("t2w_windows", [{"start_frame": 0, "end_frame": LAST, **captions}])
    record = check_record({**record, "uuid": uuid, "vision_path": video.name, "t2w_windows": windows})
    path = part_address(file, video.start, video.size)
    return ClipRecord(record, path, f"{name}/{video.name}", mark=video.mark)


def text_of(member: Member) -> str:
    """Returns the text of a tar member; raises SampleError if it is too long or not UTF-8."""
    if member.text is None:
        raise SampleError("bad_record", f"{member.name} is not UTF-8 text or too long ({member.size} bytes)")
    return member.text
