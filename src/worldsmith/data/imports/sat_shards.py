"""Shards of CogVideo's SAT: `NAME.tar` with `KEY.id` and `KEY.mp4`, and `NAME.meta.jsonl` with the captions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worldsmith.data.clips.clip_records import VIDEOS, ShardSample, samples_of, text_of
from worldsmith.data.imports.found import TEXT_KEYS, Choices, Clip, Found, caption_of, files_below, split_of
from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.shards.addresses import part_address
from worldsmith.data.shards.tar_index import index_of
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection

META = ".meta.jsonl"
COPY = "-$#%@&"
"""What SAT cuts a key at before it looks for it."""


def recognise_sat_shards(source: Path) -> str:
    shards = shards_of(source)
    return f"{meta_of(shards[0]).name} belongs to {shards[0].name}" if shards else ""


def shards_of(source: Path) -> list[Path]:
    """Returns the tars with a .meta.jsonl file next to them: the source itself, or tars below it."""
    tars = [source] if source.is_file() else [source / path for path in files_below(source)]
    return [tar for tar in tars if tar.suffix == ".tar" and meta_of(tar).is_file()]


def meta_of(tar: Path) -> Path:
    return tar.with_name(tar.name.split(".")[0] + META)


def read_sat_shards(source: Path, choices: Choices) -> Iterator[Found]:
    """Clips stay in their tars. Damaged lines and samples are left out with their numbers and names."""
    columns = [choices.caption_column] if choices.caption_column else ["caption_json", *TEXT_KEYS]
    for tar in shards_of(source):
        told: dict[str, dict[str, Any]] = {}
        meta = meta_of(tar)
        for number, line in read_lines(meta):
            try:
                item = parse_json(line)
                if not isinstance(item, dict) or not isinstance(item.get("key"), str):
                    raise SampleError("bad_record", "expected an object with a text under 'key'")
                told[item["key"]] = {**told.get(item["key"], {}), **item}
            except SampleError as error:
                yield Rejection(f"{meta.name}:{number}", error.reason, error.detail, str(meta), number)
        yield from clips_of(tar, told, columns, source)


def clips_of(tar: Path, told: dict[str, dict[str, Any]], columns: list[str], source: Path) -> Iterator[Found]:
    index = index_of(str(tar))
    name = str(tar.relative_to(source)) if tar != source else tar.name
    split = split_of(Path(name))
    for sample in samples_of(index):
        try:
            yield clip_of(sample, tar, f"{name}/{sample.key}", told, columns, split)
        except SampleError as error:
            yield Rejection(f"{name}/{sample.key}", error.reason, error.detail, str(tar))
    if index.fault is not None:
        offset, why = index.fault
        yield Rejection(f"{name}@{offset}", "damaged_shard", why, str(tar))


def clip_of(
    sample: ShardSample, tar: Path, key: str, told: dict[str, dict[str, Any]], columns: list[str], split: str
) -> Clip:
    """Raises SampleError: missing_file, bad_record, bad_caption, bad_json."""
    if sample.repeated:
        raise SampleError("bad_record", f"there are two members {sample.key}.{sample.repeated}")
    video = next((sample.members[ending] for ending in VIDEOS if ending in sample.members), None)
    if video is None:
        raise SampleError("missing_file", f"there is no video under this key; found {', '.join(sample.members)}")
    said = told.get(sample.key.split(COPY)[0], {}) if "id" in sample.members else {}
    captions = caption_of({name: said[name] for name in columns if name in said})
    if len(columns) == 1 and columns[0] in said:
        captions = caption_of(said[columns[0]])
    if not captions and "txt" in sample.members:
        captions = caption_of(text_of(sample.members["txt"]))
    return Clip(Path(part_address(str(tar), video.start, video.size)), captions, split, key)
