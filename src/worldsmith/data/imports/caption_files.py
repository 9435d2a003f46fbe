"""Layouts of caption files: next to the videos, or in folders of their own.

The captioner of Cosmos writes the folder `captions/`, CogVideo's SAT reads the folder `labels/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worldsmith.data.imports.found import Choices, Clip, Found, caption_of, files_below, is_media, split_of
from worldsmith.data.json_records import parse_json
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection

CAPTION_SUFFIXES = (".json", ".txt")
Named = Mapping[Path, list[Path]]
"""Files by the name that media and captions share; all paths are relative to the source."""
CAPTION_NAMES = ("caption.json", "caption.txt")


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
