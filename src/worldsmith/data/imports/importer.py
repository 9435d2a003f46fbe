"""From what a layout finds to data set files: every clip is opened, cut into windows and becomes a record."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from worldsmith.data.clips.clip_records import FILE_NAMES
from worldsmith.data.imports.found import Clip, Found
from worldsmith.data.imports.windows import Cut, windows_of
from worldsmith.data.made_folder import complete_folder, prepare_folder
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_file import VideoInfo, examine
from worldsmith.files.atomic import write_text

NAME = Path(FILE_NAMES[0]).name
LEFT_OUT = "left_out.jsonl"
CONTENTS = ("train", "val", "test", LEFT_OUT)


@dataclass(slots=True)
class Import:
    """What there is to write, and what is to be said about it."""

    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By split."""
    left_out: list[Rejection] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    files: dict[str, VideoInfo] = field(default_factory=dict)
    """What has been found in each file that could be opened."""
    constant_captions: int = 0

    @property
    def reasons(self) -> dict[str, int]:
        return dict(sorted(Counter(rejection.reason for rejection in self.left_out).items()))

    @property
    def lengths(self) -> list[int]:
        """Frames of all windows, ascending."""
        windows = (w for records in self.records.values() for r in records for w in r["t2w_windows"])
        return sorted(w["end_frame"] - w["start_frame"] + 1 for w in windows)

    @property
    def rates(self) -> dict[str, int]:
        """Files by their frames a second, which an image has not."""
        return Counter(
            "one frame" if i.num_frames == 1 else f"{i.fps:.4g}" + " on average, unevenly spaced" * i.variable_rate
            for i in sorted(self.files.values(), key=lambda info: info.fps)
        )

    @property
    def longest(self) -> float:
        """Seconds of the longest file."""
        return max((info.duration for info in self.files.values() if info.num_frames > 1), default=0.0)

    def facts(self) -> dict[str, Any]:
        """Plain data for dataset.json and for programs."""
        lengths = self.lengths
        return {
            "clips": {split: len(records) for split, records in self.records.items()},
            "windows": len(lengths),
            "shortest_window": lengths[0],
            "longest_window": lengths[-1],
            "left_out": self.reasons,
            "frame_rates": self.rates,
            "longest_seconds": self.longest,
            "constant_captions": self.constant_captions,
            "remarks": self.remarks,
        }


def gather(
    source: Path,
    found: Iterable[Found],
    out: Path,
    cut: Cut,
    *,
    caption: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Import:
    """Opens all clips; writes nothing. A clip without caption gets `caption`, or is left out.

    Paths of the records are seen from the folder of their split in `out`.
    """
    made, found = Import(), list(found)
    seen: set[tuple[str, range | None]] = set()
    keys: set[str] = set()
    for number, item in enumerate(found, start=1):
        if progress is not None:
            progress(number, len(found))
        if isinstance(item, str):
            made.remarks.append(item)
        elif isinstance(item, Rejection):
            made.left_out.append(item)
        else:
            path = os.path.normpath(item.path)
            key = item.key or os.path.splitext(path)[0].removeprefix(f"{source}/").lstrip("/")
            while key in keys:  # a.mp4 beside a.mov
                key += os.path.splitext(path)[1] or "+"
            try:
                if path.encode(errors="replace") != path.encode(errors="surrogateescape"):
                    raise SampleError("bad_path", "the path is no Unicode, which a data set file is made of")
                if (path, item.frames) in seen:
                    raise SampleError("duplicate", "the same file is named before")
                seen.add((path, item.frames))
                captions = item.captions or ({"caption": caption} if caption else {})
                if not captions:
                    raise SampleError("no_caption", "no text belongs to it; --caption TEXT gives one to all such clips")
                add_clip(made, replace(item, path=Path(path), key=key, captions=captions), out / item.split, cut)
                made.constant_captions += not item.captions
                keys.add(key)
            except SampleError as error:
                made.left_out.append(Rejection(shown(key), error.reason, error.detail, shown(path)))
    return made


def add_clip(made: Import, clip: Clip, folder: Path, cut: Cut) -> None:
    """Adds the record of a clip, and lists its windows that are too short.

    Raises SampleError, with the reason that training would give.
    """
    path = str(clip.path)
    status, info = examine(path)
    frames = clip.frames if clip.frames is not None else range(info.num_frames)
    if frames.stop > info.num_frames:
        detail = f"frames {frames.start}..{frames.stop - 1} are wanted of a file that has {info.num_frames}"
        raise SampleError("window_out_of_range", detail)
    windows = []
    for window in windows_of(frames, path, status.st_mtime_ns, info, cut):
        ends = {"start_frame": window.start, "end_frame": window.stop - 1, "temporal_interval": 1}
        if len(window) >= cut.min_frames:
            windows.append({**ends, **clip.captions})
        else:
            detail = f"window {window.start}..{window.stop - 1}; min_frames is {cut.min_frames}"
            made.left_out.append(Rejection(f"{clip.key}:{window.start}", "too_short", detail, path))
    made.files[path] = info
    if windows:
        times = {"duration": info.duration, "framerate": info.fps} if info.num_frames > 1 else {}
        record: dict[str, Any] = {"uuid": clip.key, "vision_path": os.path.relpath(path, folder), **times}
        record |= {"nb_frames": info.num_frames, "width": info.width, "height": info.height}
        record |= {"t2w_windows": windows, **clip.extra}
        for name, linked in clip.linked.items():
            record[name] = {**record[name], "path": os.path.relpath(linked, folder)}
        made.records.setdefault(clip.split, []).append(record)


def shown(text: str) -> str:
    """A text that can be written, whatever the name of a file is made of."""
    return text.encode(errors="backslashreplace").decode()


def write(made: Import, out: Path, header: dict[str, Any], *, force: bool) -> None:
    """Writes a data set file a split, the list of what is left out, and, last, dataset.json.

    Raises FileExistsError for a data set that is there, unless `force`, and for a folder with other content.
    """
    if not prepare_folder(out, header, CONTENTS, force):
        raise FileExistsError(f"{out} holds this data set already; give --force to make it anew from its source")
    for split, records in made.records.items():
        (out / split).mkdir()
        write_text(out / split / NAME, lines_of(records))
    write_text(out / LEFT_OUT, lines_of(map(asdict, made.left_out)))
    complete_folder(out, header | made.facts())


def lines_of(records: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
