"""Output of the splitting pipeline of cosmos-curate: clips, and their windows and captions in metas_jsonl or metas.

The records have the keys that `ClipWriterStage` of cosmos-curate writes. Captions are selected as by
`curator_to_sft_jsonl.py` of cosmos-framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worldsmith.data.json_records import parse_json, read_lines
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import VideoInfo
from worldsmith.tools.datasets.imports.source_clips import Choices, Clip, Found, caption_of, media_path, split_within

FOLDERS = {"metas_jsonl/v0": "*.jsonl", "metas/v0": "*.json"}
"""Folder of records -> pattern of its files: several records per file (--upload-clip-info-in-chunks), or one."""
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
    base = output_folder(source)
    kinds = [(base / name, pattern) for name, pattern in FOLDERS.items() if source in (base, base / name)]
    return next((files for folder, pattern in kinds if (files := sorted(folder.glob(pattern)))), [])


def output_folder(source: Path) -> Path:
    """Returns the output folder of the pipeline; `source` is this folder, or one of `FOLDERS` in it."""
    return source.parent.parent if f"{source.parent.name}/{source.name}" in FOLDERS else source


def read_curator(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields a clip for each captioned window, and rejections of damaged records and of clips that were filtered out.

    Args:
        source: The output folder of the pipeline, or its folder of records.
        choices: Import options; only the caption column is used: the preferred key of the captions of a window.

    Raises:
        ValueError: If no window has the preferred key.
    """
    preferred, keys = choices.caption_column, Counter[str]()
    for file in record_files(source):
        for number, line in read_lines(file) if file.suffix == ".jsonl" else [(1, file.read_bytes())]:
            try:
                yield from clips_of(parse_json(line), file, output_folder(source), preferred, keys)
            except SampleError as error:
                yield Rejection(f"{file.name}:{number}", error.reason, error.detail, str(file), number)
    if preferred and preferred not in keys:
        raise ValueError(f"{source} has no captions under {preferred}; select one of {', '.join(sorted(keys))}")
    yield f"captions: {', '.join(f'{key} ({count} windows)' for key, count in sorted(keys.items())) or 'none'}"


def clips_of(record: Any, file: Path, source: Path, preferred: str | None, keys: Counter[str]) -> Iterator[Found]:
    """Yields the windows of a record, all with the key of the record.

    Args:
        record: Content of a line or file.
        file: File with the record.
        source: The output folder of the pipeline.
        preferred: Preferred key of the captions of a window; None: none.
        keys: Counts the windows by the key of their caption, in place.

    Raises:
        SampleError: With the reason bad_record, filtered or no_path.
    """
    if not isinstance(record, dict) or not isinstance(key := record.get("span_uuid"), str):
        raise SampleError("bad_record", "expected an object with a string under 'span_uuid'")
    path = media_path(source, record.get("clip_location"))
    if FILTERED in str(path):
        raise SampleError("filtered", f"{path}: the pipeline has filtered the clip out")
    if isinstance(path, Path) and not path.exists() and (moved := source / "clips" / path.name).exists():
        path = moved  # since it was written
    windows = record.get("windows")
    if not (isinstance(windows, list) and windows):
        raise SampleError("bad_record", f"'windows' of {key} must be a list with at least one window")
    info = stated_info(record) if isinstance(path, str) else None
    for number, window in enumerate(windows):
        start, end = (window.get(name) if isinstance(window, dict) else None for name in ("start_frame", "end_frame"))
        if not (type(start) is int and type(end) is int and 0 <= start <= end):
            yield Rejection(f"{key}_w{number}", "bad_record", f"window {start!r}..{end!r}", str(path))
            continue
        name = caption_key(window, preferred)
        keys.update([name] * bool(name))
        captions, split = caption_of(window.get(name)), split_within(source, path, file)
        yield Clip(path, captions, split, key, range(start, end + 1), info=info)


def caption_key(window: dict[str, Any], preferred: str | None) -> str:
    """Returns the key of the caption of a window: the preferred, else the first enhanced, else the first one; or ""."""
    full = sorted(name for name, text in window.items() if isinstance(text, str) and text.strip())
    if preferred in full:
        return str(preferred)
    return next((name for suffix in (ENHANCED, PLAIN) for name in full if name.endswith(suffix)), "")


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
