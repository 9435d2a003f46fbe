"""Which layouts there are, and which of them a source has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worldsmith.data.clips.video_dataset import FILE_NAMES
from worldsmith.data.imports import captions, lerobot, lines, sidecar, table
from worldsmith.data.imports.found import Choices, Found


@dataclass(frozen=True, slots=True)
class Layout:
    recognise: Callable[[Path], str]
    """Why a source is taken for one of this layout; "" if it is not."""
    read: Callable[[Path, Choices], Iterator[Found]]
    choices: tuple[str, ...] = ()
    """What the user may choose in it: fields of `Choices`."""


LAYOUTS = {
    "sidecar": Layout(sidecar.recognise, sidecar.read),
    "lines": Layout(lines.recognise, lines.read),
    "table": Layout(table.recognise, table.read, ("path_column", "caption_column")),
    "captions": Layout(captions.recognise, captions.read),
    "lerobot": Layout(lerobot.recognise, lerobot.read, ("camera",)),
}


def recognise(source: Path) -> tuple[str, str]:
    """(name of the layout, why). Raises ValueError when there is none, or more than one."""
    found = {name: why for name, layout in LAYOUTS.items() if (why := layout.recognise(source))}
    if len(found) > 1:
        candidates = "; ".join(f"{name}: {why}" for name, why in found.items())
        raise ValueError(f"{source} could be of several layouts: {candidates}. Say which with --layout")
    if found:
        return next(iter(found.items()))
    if ours := [name for name in FILE_NAMES if (source / name).is_file()]:
        raise ValueError(f"{source} has {ours[0]}, which training reads as it is; there is nothing to import")
    if source.is_dir() and sidecar.media_files(source):
        return "sidecar", "there are videos or images, and no captions"
    raise ValueError(
        f"{source} is of no known layout: no video or image with a .txt or .json of its name, no prompts.txt with "
        "videos.txt, no metadata.csv or metadata.jsonl, no captions/ with videos/, no meta/info.json (LeRobot)"
    )
