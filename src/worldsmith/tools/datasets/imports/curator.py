"""Output of the splitting pipeline of cosmos-curate: clips, and their windows and captions in metas_jsonl or metas.

The records have the keys that `ClipWriterStage` of cosmos-curate writes. Captions are selected as by
`curator_to_sft_jsonl.py` of cosmos-framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import VideoInfo
from worldsmith.files.remote import is_remote
from worldsmith.tools.datasets.imports.source_clips import Choices, Clip, Found, caption_of, media_path, split_within

FOLDERS = ("metas_jsonl/v0", "metas/v0")
"""Folders of the records: several per file (--upload-clip-info-in-chunks), or one."""
FILTERED = "/filtered_clips/"
"""Part of the path of a clip that the pipeline has filtered out."""
ENHANCED, PLAIN = "_enhanced_caption", "_caption"
"""Suffixes of the keys of captions, after the name of the model, by preference."""


def recognise_curator(source: Path) -> str:
    """Returns text that names a file with records of clips in `source`; "" if no file is found."""
    files = record_files(source)
    return f"found {files[0].relative_to(source)}" if files else ""


def record_files(source: Path) -> list[Path]:
    """Returns the files with records of clips: of the output folder of the pipeline, or of one of `FOLDERS`."""
    folders = [source / name for name in FOLDERS]
    if source.parent.name in ("metas_jsonl", "metas"):
        folders.append(source)
    return next((files for folder in folders if (files := sorted(folder.glob("*.json*")))), [])


def read_curator(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields a clip for each captioned window, and rejections of damaged records and of clips that were filtered out.

    Args:
        source: The output folder of the pipeline, or its folder of records.
        choices: Import options; only the caption column is used: the preferred key of the captions of a window.
    """
    for file in record_files(source):
        for number, line in read_lines(file) if file.suffix == ".jsonl" else [(1, file.read_bytes())]:
            try:
                yield from clips_of(parse_json(line), file, source, choices.caption_column)
            except SampleError as error:
                yield Rejection(f"{file.name}:{number}", error.reason, error.detail, str(file), number)


def clips_of(record: Any, file: Path, source: Path, preferred: str | None) -> Iterator[Found]:
    """Yields the windows of a record, all with the key of the record.

    Args:
        record: Content of a line or file.
        file: File with the record.
        source: The imported folder.
        preferred: Preferred key of the captions of a window; None: none.

    Raises:
        SampleError: With the reason bad_record, filtered or no_path.
    """
    if not isinstance(record, dict) or not isinstance(key := record.get("span_uuid"), str):
        raise SampleError("bad_record", "expected an object with a string under 'span_uuid'")
    path = media_path(source, record.get("clip_location"))
    if FILTERED in str(path):
        raise SampleError("filtered", f"{path}: the pipeline has filtered the clip out")
    moved = source / "clips" / path.name if isinstance(path, Path) else source
    if isinstance(path, Path) and not path.exists() and moved.exists():  # the output was written at another place
        path = moved
    windows = record.get("windows")
    if not (isinstance(windows, list) and windows):
        raise SampleError("bad_record", f"'windows' of {key} must be a list with at least one window")
    info = stated_info(record) if is_remote(str(path)) else None
    for number, window in enumerate(windows):
        start, end = (window.get(name) if isinstance(window, dict) else None for name in ("start_frame", "end_frame"))
        if not (type(start) is int and type(end) is int and 0 <= start <= end):
            yield Rejection(f"{key}_w{number}", "bad_record", f"window {start!r}..{end!r}", str(path))
            continue
        captions = caption_of(find_caption(window, preferred))
        split = split_within(source, path, file)
        yield Clip(path, captions, split, key, range(start, end + 1), info=info)


def find_caption(window: dict[str, Any], preferred: str | None) -> str:
    """Returns the caption of a window: under the preferred key, else the first enhanced one, else the first or ""."""
    names = sorted(window)
    order = [name for name in names if name.endswith(ENHANCED)] + [name for name in names if name.endswith(PLAIN)]
    found = (window.get(name) for name in ([preferred, *order] if preferred else order))
    return next((text for text in found if isinstance(text, str) and text.strip()), "")


def stated_info(record: dict[str, Any]) -> VideoInfo | None:
    """Returns the metadata of a clip that its record states; None if it is incomplete.

    A clip in an object store is not opened, since it would be read as a whole.
    """
    names = ("width", "height", "framerate", "num_frames")
    stated = [value for name in names if isinstance(value := record.get(name), (int, float)) and value > 0]
    if len(stated) < len(names):
        return None
    width, height, fps, frames = stated
    return VideoInfo(int(width), int(height), float(fps), int(frames), rotation=0)
