"""Layouts of caption files: next to the videos, in folders of their own, or next to shards of videos.

The captioner of Cosmos writes the folder `captions/`. CogVideo's SAT reads the folder `labels/`, and shards: `NAME.tar`
with `KEY.id` and `KEY.mp4`, and `NAME.meta.jsonl` with the captions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worldsmith.data.clips.clip_records import VIDEOS, ShardSample, samples_of, text_of
from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.shards.addresses import part_address
from worldsmith.data.shards.tar_index import index_of
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.tools.datasets.imports.found import (
    TEXT_KEYS,
    Choices,
    Clip,
    Found,
    caption_of,
    files_below,
    is_media,
    split_of,
)

CAPTION_SUFFIXES = (".json", ".txt")
Named = Mapping[Path, list[Path]]
"""Files by the name that media and captions share; all paths are relative to the source."""
CAPTION_NAMES = ("caption.json", "caption.txt")
META = ".meta.jsonl"
COPY = "-$#%@&"
"""SAT drops this and what follows from a key before it looks for the key."""


def recognise_sidecars(source: Path) -> str:
    captions = caption_files(source)
    for name, media in media_files(source).items():
        if name in captions:
            return f"{captions[name][0]} stands beside {media[0].name}"
    return ""


def read_sidecars(source: Path, choices: Choices) -> Iterator[Found]:
    yield from pair_up(source, media_files(source), caption_files(source))


def recognise_caption_folders(source: Path) -> str:
    media, captions = media_and_captions(source)
    both = sorted(captions.keys() & media.keys())
    return f"{captions[both[0]][0]} belongs to {media[both[0]][0]}" if both else ""


def read_caption_folders(source: Path, choices: Choices) -> Iterator[Found]:
    yield from pair_up(source, *media_and_captions(source))


def media_files(source: Path) -> Named:
    return group_by_name((path, path.with_suffix("")) for path in files_below(source) if is_media(path))


def caption_files(source: Path) -> Named:
    found = (path for path in files_below(source) if path.suffix.lower() in CAPTION_SUFFIXES)
    return group_by_name((path, path.with_suffix("")) for path in found)


def group_by_name(named: Iterable[tuple[Path, Path]]) -> Named:
    found: dict[Path, list[Path]] = {}
    for path, name in named:
        found.setdefault(name, []).append(path)
    return found


def pair_up(source: Path, media: Named, captions: Named) -> Iterator[Found]:
    """Yields the clips of media with captions of the same name: .json is the structured caption, .txt the plain one."""
    for name in sorted({*media, *captions}):
        files = captions.get(name, [])
        if name not in media:
            where = str(source / files[0])
            yield Rejection(str(name), "caption_without_video", "no video or image has its name", where)
            continue
        try:
            found: dict[str, Any] = {}
            for file in files:
                found |= read_caption_file(source / file)
        except SampleError as error:
            yield Rejection(str(name), error.reason, f"{file.name}: {error.detail}", str(source / file))
            continue
        for path in media[name]:
            yield Clip(source / path, found, split_of(path))


def media_and_captions(source: Path) -> tuple[Named, Named]:
    """Returns media and captions by NAME or SPLIT/NAME: the folders are in the source or in the folder of a split."""
    media, captions = [], []
    for path in files_below(source):
        *parts, folder, name = ("", "", *path.parts)
        if is_media(path) and folder == "videos":
            media.append((path, Path(*parts, path.stem)))
        elif name in CAPTION_NAMES and parts[-1] == "captions":
            captions.append((path, Path(*parts[:-1], folder)))
        elif path.suffix.lower() == ".txt" and folder == "labels":
            captions.append((path, Path(*parts, path.stem)))
    return group_by_name(media), group_by_name(captions)


def read_caption_file(path: Path) -> dict[str, Any]:
    """Reads the captions of a .txt or .json file; empty if the file is blank.

    Raises:
        SampleError: unreadable, bad_json or bad_caption.
    """
    try:
        if not path.is_file():  # reading from a FIFO would wait for ever
            raise SampleError("bad_caption", f"{path.name} is no file, or leads to none")
        content = path.read_bytes()
    except OSError as error:
        raise SampleError("unreadable", str(error)) from None
    if path.suffix.lower() == ".json":
        return caption_of(parse_json(content))
    try:
        return caption_of(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SampleError("bad_caption", f"{path.name} is not UTF-8 text: {error}") from None


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
        yield from clips_of_shard(tar, told, columns, source)


def clips_of_shard(tar: Path, told: dict[str, dict[str, Any]], columns: list[str], source: Path) -> Iterator[Found]:
    index = index_of(str(tar))
    name = str(tar.relative_to(source)) if tar != source else tar.name
    split = split_of(Path(name))
    for sample in samples_of(index):
        try:
            yield clip_of_sample(sample, tar, f"{name}/{sample.key}", told, columns, split)
        except SampleError as error:
            yield Rejection(f"{name}/{sample.key}", error.reason, error.detail, str(tar))
    if index.fault is not None:
        offset, why = index.fault
        yield Rejection(f"{name}@{offset}", "damaged_shard", why, str(tar))


def clip_of_sample(
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
