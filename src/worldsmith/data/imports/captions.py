"""Captions in a folder beside `videos/NAME.mp4`: `captions/NAME/caption.json` and `caption.txt`, or `labels/NAME.txt`.

The first is what the published captioner of Cosmos writes, the second what CogVideo's SAT reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from worldsmith.data.imports.found import Choices, Found, files_below, is_media
from worldsmith.data.imports.sidecar import Named, by_name, pair_up

FILES = ("caption.json", "caption.txt")


def recognise(source: Path) -> str:
    media, captions = media_and_captions(source)
    both = sorted(captions.keys() & media.keys())
    return f"{captions[both[0]][0]} belongs to {media[both[0]][0]}" if both else ""


def media_and_captions(source: Path) -> tuple[Named, Named]:
    """By train/NAME, or NAME alone: the folders stand in the source or in the folders of its splits."""
    media, captions = [], []
    for path in files_below(source):
        *parts, folder, name = ("", "", *path.parts)
        if is_media(path) and folder == "videos":
            media.append((path, Path(*parts, path.stem)))
        elif name in FILES and parts[-1] == "captions":
            captions.append((path, Path(*parts[:-1], folder)))
        elif path.suffix.lower() == ".txt" and folder == "labels":
            captions.append((path, Path(*parts, path.stem)))
    return by_name(media), by_name(captions)


def read(source: Path, choices: Choices) -> Iterator[Found]:
    yield from pair_up(source, *media_and_captions(source))
