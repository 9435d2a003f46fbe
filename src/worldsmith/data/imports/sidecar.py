"""A folder of videos or images, each with a .txt or .json file of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worldsmith.data.imports.found import Choices, Clip, Found, files_below, is_media, read_caption_file, split_of
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection

CAPTIONS = (".json", ".txt")
Named = Mapping[Path, list[Path]]
"""Files by the name that media and captions have in common; all paths are seen from the source."""


def recognise(source: Path) -> str:
    captions = caption_files(source)
    for name, media in media_files(source).items():
        if name in captions:
            return f"{captions[name][0]} stands beside {media[0].name}"
    return ""


def media_files(source: Path) -> Named:
    return by_name((path, path.with_suffix("")) for path in files_below(source) if is_media(path))


def caption_files(source: Path) -> Named:
    found = (path for path in files_below(source) if path.suffix.lower() in CAPTIONS)
    return by_name((path, path.with_suffix("")) for path in found)


def by_name(named: Iterable[tuple[Path, Path]]) -> Named:
    found: dict[Path, list[Path]] = {}
    for path, name in named:
        found.setdefault(name, []).append(path)
    return found


def read(source: Path, choices: Choices) -> Iterator[Found]:
    yield from pair_up(source, media_files(source), caption_files(source))


def pair_up(source: Path, media: Named, captions: Named) -> Iterator[Found]:
    """Media with the captions of their name: a .json gives the structured one, a .txt beside it the plain one."""
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
