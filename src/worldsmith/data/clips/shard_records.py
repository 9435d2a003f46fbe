"""Clips in WebDataset shards: members `KEY.mp4` and `KEY.json` or `KEY.txt`, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from worldsmith.data.clips.clip_records import ClipRecord, check_record
from worldsmith.data.json_records import parse_json
from worldsmith.data.shards.addresses import find_shards, short_names
from worldsmith.data.shards.part import part_of
from worldsmith.data.shards.tar_index import Member, TarIndex, index_all
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.quarantine import Rejection

VIDEOS = ("mp4", "mov", "mkv", "webm", "avi", "m4v", "mpg", "mpeg", "gif")
NAME = re.compile(r"((?:.*/|)[^.]+)\.([^/]*)", re.DOTALL)
"""Key and ending of a member, as WebDataset parts them: at the first dot."""
FACTS = ("uuid", "duration", "width", "height", "nb_frames")
LAST = -1
"""The end_frame of a window up to the last frame of the clip."""


@dataclass(slots=True)
class ShardSample:
    """Members that follow each other and have one key; the first of each ending."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)
    repeated: str = ""
    """An ending that it has twice."""


def shard_records(pattern: str) -> Iterator[ClipRecord | Rejection]:
    """One for each sample, and a rejection for what is damaged.

    Raises DataError when a shard cannot be reached, or none of them can be read.
    """
    files = find_shards(pattern)
    indices = index_all(files)
    faults = [f"{index.file}: {index.fault[1]}" for index in indices if index.fault and not index.members]
    if len(faults) == len(files):
        raise DataError(
            f"{pattern}: no shard can be read ({len(files)} found): {faults[0]}. Copy or download the shards anew"
        )
    for index, name in zip(indices, short_names(files)):
        seen: set[str] = set()
        for sample in samples_of(index):
            uuid, first = f"{name}/{sample.key}", next(iter(sample.members.values()))
            place = part_of(index.file, first.start, first.size)
            try:
                if sample.key in seen:
                    raise SampleError("bad_record", f"the key '{sample.key}' was used before in this shard")
                yield record_of(sample, uuid, index.file, name)
            except SampleError as error:
                again = f"@{first.start}" if sample.key in seen else ""
                yield Rejection(uuid + again, error.reason, error.detail, place)
            seen.add(sample.key)
        if index.fault is not None:
            offset, why = index.fault
            yield Rejection(f"{name}@{offset}", "damaged_shard", why, index.file)


def samples_of(index: TarIndex) -> Iterator[ShardSample]:
    """Members without an ending belong to no sample."""
    sample: ShardSample | None = None
    for member in index.members:
        if (parts := NAME.fullmatch(member.name)) is None:
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
    """Raises SampleError: missing_file, no_caption, bad_json, bad_record."""
    endings = ", ".join(sample.members)
    if sample.repeated:
        raise SampleError("bad_record", f"there are two members {sample.key}.{sample.repeated}")
    video = next((sample.members[ending] for ending in VIDEOS if ending in sample.members), None)
    if video is None:
        raise SampleError("missing_file", f"there is no video under this key ({', '.join(VIDEOS)}); found {endings}")
    facts: dict[str, Any] = {}
    if "json" in sample.members:
        facts = parse_json(text_of(sample.members["json"]).encode())
        if not isinstance(facts, dict):
            raise SampleError("bad_record", f"{sample.key}.json: expected an object, found {type(facts).__name__}")
    if "txt" in sample.members and "t2w_windows" not in facts:
        facts = {"caption": text_of(sample.members["txt"]), **facts}
    if not facts:
        raise SampleError("no_caption", f"there is no {sample.key}.json or .txt; found {endings}")
    record = {fact: facts[fact] for fact in FACTS if fact in facts}
    captions = {key: value for key, value in facts.items() if key not in FACTS and isinstance(value, (str, dict))}
    windows = facts.get("t2w_windows", [{"start_frame": 0, "end_frame": LAST, **captions}])
    record = check_record({**record, "uuid": uuid, "vision_path": video.name, "t2w_windows": windows})
    path = part_of(file, video.start, video.size)
    return ClipRecord(record, path, f"{name}/{video.name}", mark=video.mark)


def text_of(member: Member) -> str:
    if member.text is None:
        raise SampleError("bad_record", f"{member.name} is no UTF-8 text or too long ({member.size} bytes)")
    return member.text
