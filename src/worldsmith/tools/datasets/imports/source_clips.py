"""Clips found in a source, with captions; functions for splits, captions and paths that all layouts share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldsmith.data.json_records import parse_json
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import IMAGES, VideoInfo

VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".gif")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""Split folder names that Hugging Face `datasets` recognizes → split names of Worldsmith."""
STRUCTURED = {
    *("subjects", "background_setting", "lighting", "aesthetics", "cinematography", "style_medium", "artistic_style"),
    *("context", "actions", "text_and_signage_elements", "segments", "transitions", "temporal_caption"),
    "audio_description",
}
"""Keys of a structured caption; an object with at least one of them is a structured caption."""
TEXT_KEYS = ("caption", "text", "prompt")
STORES = ("s3://", "gs://", "hf://")


@dataclass(frozen=True, slots=True)
class Clip:
    """Frame range of a media file with its caption. The file has not been opened unless the layout requires it."""

    path: Path | str
    """Absolute path of the media file, or its address in an object store (str)."""
    captions: dict[str, Any]
    """Captions of the clip: `caption` (text) and `caption_json` (structured caption); missing captions have no key."""
    split: str = "train"
    key: str = ""
    """Name of the clip; "": the relative path of the file."""
    frames: range | None = None
    """Frame range; None: all frames of the file."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further entries of the clip's record in the dataset file."""
    linked: dict[str, str] = field(default_factory=dict)
    """Further files of the clip by key of `extra`: `extra[key]["path"]` becomes the relative path of `linked[key]`, or
    its address."""
    info: VideoInfo | None = None
    """Metadata of the media file, which then is not opened; None: the file is opened."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Import options: the cameras, and the columns of paths and captions; None or empty: the default of the layout."""

    camera: Sequence[str] = ()
    path_column: str | None = None
    caption_column: str | None = None


Found = Clip | Rejection | str
"""Item that the reader of a layout yields: a clip, a skipped clip, or a note (str) for the user about the source."""


def split_of(relative: Path) -> str:
    """Returns "train", "val" or "test": the split that the first folder of a relative path names, else "train"."""
    return SPLITS.get(relative.parts[0].lower(), "train") if len(relative.parts) > 1 else "train"


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the paths, relative to `folder`, of all files in it except hidden ones, in a fixed order.

    Links are followed, and each folder is visited once.
    """
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name).relative_to(folder) for name in sorted(names) if not name.startswith("."))


def is_media(path: Path) -> bool:
    """Returns whether a path has the suffix of a video or an image file."""
    return path.suffix.lower() in (*VIDEOS, *IMAGES)


def caption_of(value: Any) -> dict[str, Any]:
    """Returns {"caption": text, "caption_json": object} for a caption in a source; missing captions have no key.

    The dictionary is empty if the value is blank.

    Args:
        value: A string; an object with `caption_json` or a string under `caption`, `text` or `prompt`; or a structured
            caption itself.

    Raises:
        SampleError: With the reason bad_caption or bad_json for any other value.
    """
    if is_blank(value):
        return {}
    if isinstance(value, str):
        return {"caption": value.strip()}
    if not isinstance(value, dict):
        raise SampleError("bad_caption", f"expected a string or an object, found {type(value).__name__}")
    structured, texts = value.get("caption_json"), texts_of(value, *TEXT_KEYS)
    if structured is None and not texts and STRUCTURED & value.keys():
        structured, texts = value, texts_of(value, "temporal_caption")
    if isinstance(structured, str) and structured.strip():
        structured = parse_json(structured.encode())
    if structured and not isinstance(structured, (dict, str)):
        raise SampleError("bad_caption", f"'caption_json' must be an object, found {json.dumps(structured)[:80]}")
    found = {"caption_json": structured if isinstance(structured, dict) else None, "caption": next(iter(texts), None)}
    if not any(found.values()) and any(not is_blank(item) for item in value.values()):
        raise SampleError("bad_caption", f"no caption in an object of {', '.join(value)}")
    return {key: caption for key, caption in found.items() if caption}


def texts_of(value: dict[str, Any], *keys: str) -> list[str]:
    return [value[key].strip() for key in keys if not is_blank(value.get(key)) and isinstance(value[key], str)]


def is_blank(value: Any) -> bool:
    return value is None or value in ("", {}, []) or (isinstance(value, str) and not value.strip())


def media_path(folder: Path, text: Any) -> Path | str:
    """Returns the path of a media file that a list or table contains, or its address (str) in an object store.

    Args:
        folder: Folder of the list, which paths are relative to.
        text: The path as written in the list or table.

    Raises:
        SampleError: With the reason no_path or remote_path.
    """
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise SampleError("no_path", f"expected a file path, found {text!r}")
    path = text.strip().removeprefix("file://")
    if "://" in path and not path.startswith(STORES):
        raise SampleError("remote_path", f"'{path}' is remote: download it and use the local path")
    return path if "://" in path else folder / path


def split_within(source: Path, media: Path | str, listed_in: Path) -> str:
    """Returns the split ("train", "val" or "test") of the media file `media`, which the file `listed_in` lists.

    The split follows from the path of `media` relative to the imported folder `source` or, if `media` is remote or
    outside of `source`, from the path of `listed_in`; see `split_of`.
    """
    path = Path(os.path.normpath(media))
    return split_of((path if path.is_relative_to(source) else listed_in).relative_to(source))
