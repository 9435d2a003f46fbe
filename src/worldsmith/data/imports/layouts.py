"""Which layouts there are, and which of them a source has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from worldsmith.data.clips.clip_records import FILE_NAMES
from worldsmith.data.imports import captions, lerobot, lines, sat_shards, sidecar, table
from worldsmith.data.imports.found import Choices, Found


class Layout(Protocol):
    """What a module that reads a layout has; its docstring describes the layout."""

    def recognise(self, source: Path) -> str:
        """Why a source is taken for one of this layout; "" if it is not."""

    def read(self, source: Path, choices: Choices) -> Iterator[Found]:
        """What is in it. Raises ValueError when it is not whole, UserError when a library is missing."""


LAYOUTS: dict[str, Layout] = {
    "sidecar": sidecar,
    "lines": lines,
    "table": table,
    "captions": captions,
    "sat_shards": sat_shards,
    "lerobot": lerobot,
}
CHOICES = {
    "table": ("path_column", "caption_column"),
    "lerobot": ("camera",),
    "sat_shards": ("caption_column",),
}
"""What the user may choose in a layout: fields of `Choices`."""


def find_layout(source: Path, wanted: str) -> tuple[str, str]:
    """(name of the layout, why it is taken for that); `wanted` is a name, or auto.

    Raises ValueError when the source is not laid out like that, of no layout, or of more than one.
    """
    found = {name: why for name, layout in LAYOUTS.items() if (why := layout.recognise(source))}
    ours = [name for name in FILE_NAMES if (source / name).is_file()]
    if wanted == "auto" and not found and ours:
        raise ValueError(f"{source} has {ours[0]}, which training reads as it is; there is nothing to import")
    if (wanted == "sidecar" or (wanted == "auto" and not found)) and sidecar.media_files(source):
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
    return f"{layout}: {LAYOUTS[layout].__doc__}".partition("\n")[0]
