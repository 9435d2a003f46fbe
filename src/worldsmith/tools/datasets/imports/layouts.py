"""The layouts that can be imported, and the detection of the layout of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worldsmith.data.clips.clip_records import FILE_NAMES
from worldsmith.tools.datasets.imports.caption_files import (
    media_files,
    read_caption_folders,
    read_sat_shards,
    read_sidecars,
    recognise_caption_folders,
    recognise_sat_shards,
    recognise_sidecars,
)
from worldsmith.tools.datasets.imports.found import Choices, Found
from worldsmith.tools.datasets.imports.lerobot import read_lerobot, recognise_lerobot
from worldsmith.tools.datasets.imports.tables import (
    read_line_lists,
    read_tables,
    recognise_line_lists,
    recognise_tables,
)


@dataclass(frozen=True, slots=True)
class ImportLayout:
    """A layout of files that can be imported."""

    description: str
    recognise: Callable[[Path], str]
    """Returns why a source has this layout; "" if it does not."""
    read: Callable[[Path, Choices], Iterator[Found]]
    """Yields the clips of a source. Raises ValueError if it is incomplete, UserError if a library is missing."""


LAYOUTS = {
    "sidecar": ImportLayout(
        "A folder of videos or images, each with a .txt or .json file of the same name.",
        recognise_sidecars,
        read_sidecars,
    ),
    "lines": ImportLayout(
        "`prompts.txt` and `videos.txt`: line n of the one is the caption of the path in line n of the other.",
        recognise_line_lists,
        read_line_lists,
    ),
    "table": ImportLayout(
        "`metadata.csv` or `metadata.jsonl` with a row a clip, also in the folders of Hugging Face's videofolder.",
        recognise_tables,
        read_tables,
    ),
    "captions": ImportLayout(
        "Captions in a folder beside `videos/NAME.mp4`: `captions/NAME/caption.json` and `caption.txt`, or "
        "`labels/NAME.txt`.",
        recognise_caption_folders,
        read_caption_folders,
    ),
    "sat_shards": ImportLayout(
        "Shards of CogVideo's SAT: `NAME.tar` with `KEY.id` and `KEY.mp4`, and `NAME.meta.jsonl` with the captions.",
        recognise_sat_shards,
        read_sat_shards,
    ),
    "lerobot": ImportLayout(
        "A LeRobot dataset, v2.0, v2.1 or v3.0: an episode's frames of a camera are a clip, its task is the caption.",
        recognise_lerobot,
        read_lerobot,
    ),
}
CHOICES = {
    "table": ("path_column", "caption_column"),
    "lerobot": ("camera",),
    "sat_shards": ("caption_column",),
}
"""Fields of `Choices` that apply to a layout."""


def find_layout(source: Path, wanted: str) -> tuple[str, str]:
    """Returns (name of the layout, why the source has it).

    Args:
        source: A folder or a file.
        wanted: Name of a layout, or "auto".

    Raises:
        ValueError: The source does not have the wanted layout, or it has none or several.
    """
    found = {name: why for name, layout in LAYOUTS.items() if (why := layout.recognise(source))}
    ours = [name for name in FILE_NAMES if (source / name).is_file()]
    if wanted == "auto" and not found and ours:
        raise ValueError(f"{source} has {ours[0]}, which training reads as it is; there is nothing to import")
    if (wanted == "sidecar" or (wanted == "auto" and not found)) and media_files(source):
        found.setdefault("sidecar", "there are videos or images, and no captions")
    if wanted in found:
        return wanted, found[wanted]
    if wanted != "auto":
        raise ValueError(f"{source} has not the layout {described(wanted)}")
    if len(found) > 1:
        candidates = "; ".join(f"{name}: {why}" for name, why in found.items())
        raise ValueError(f"{source} could be of several layouts: {candidates}. Say which with --layout")
    if found:
        return next(iter(found.items()))
    raise ValueError("\n  ".join([f"{source} has none of the layouts:", *map(described, LAYOUTS)]))


def described(layout: str) -> str:
    return f"{layout}: {LAYOUTS[layout].description}"
