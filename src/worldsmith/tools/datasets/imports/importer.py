"""Writes dataset files from the clips of a layout: opens every clip, splits it into windows, writes a record."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from worldsmith.actions.processes import FailedItem
from worldsmith.data.clips.clip_records import FILE_NAMES
from worldsmith.data.dataset_folder import complete_folder, prepare_folder
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import FileStatus, VideoInfo, examine, frame_times
from worldsmith.files.atomic import write_text
from worldsmith.files.errors import require_libraries
from worldsmith.files.remote import is_remote
from worldsmith.tools.datasets.imports.source_clips import Clip, Found

NAME = Path(FILE_NAMES[0]).name
LEFT_OUT = "left_out.jsonl"
CONTENTS = ("train", "val", "test", LEFT_OUT)
THRESHOLD = 27.0
"""Default threshold of PySceneDetect's `ContentDetector`."""
ClipsOfFile = tuple[str, tuple[range | None, ...], VideoInfo | None]
"""Path of a media file, the frames of each of its clips (None: all frames), and its metadata (None: to be read)."""
Reason = tuple[str, str]
"""Code of the reason why a clip cannot be used, as in training, and the details."""
NO_INFO = VideoInfo(width=0, height=0, fps=0.0, num_frames=0, rotation=0)
"""Metadata of a file that cannot be opened."""


@dataclass(slots=True)
class Import:
    """Content of an imported dataset: records to write, skipped clips, and notes for the user."""

    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Records of the dataset files by name of the split."""
    left_out: list[Rejection] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    files: dict[str, VideoInfo] = field(default_factory=dict)
    """Properties of each file that could be opened."""
    constant_captions: int = 0

    @property
    def reasons(self) -> dict[str, int]:
        """Number of skipped clips by reason."""
        return dict(sorted(Counter(rejection.reason for rejection in self.left_out).items()))

    @property
    def lengths(self) -> list[int]:
        """Length in frames of each clip window (frame range into which clips are split), sorted in ascending order."""
        windows = (w for records in self.records.values() for r in records for w in r["t2w_windows"])
        return sorted(w["end_frame"] - w["start_frame"] + 1 for w in windows)

    @property
    def rates(self) -> dict[str, int]:
        """Number of files by frame rate as text, such as "24" for 24 fps; images have the key "one frame"."""
        return Counter(
            "one frame" if i.num_frames == 1 else f"{i.fps:.4g}" + " on average, unevenly spaced" * i.variable_rate
            for i in sorted(self.files.values(), key=lambda info: info.fps)
        )

    @property
    def longest(self) -> float:
        """Duration of the longest video file in seconds."""
        return max((info.duration for info in self.files.values() if info.num_frames > 1), default=0.0)

    def facts(self) -> dict[str, Any]:
        """Returns the counts of the import as plain data, for dataset.json and the command's JSON output.

        Numbers by name: `clips` by split, `left_out` (skipped clips) by reason, `frame_rates` (files) by frame rate.
        `shortest_window` and `longest_window` are in frames. `remarks` are notes for the user.
        """
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


@dataclass(frozen=True, slots=True)
class Cut:
    """Settings for splitting clips into windows (frame ranges, each a training sample); default: no splitting."""

    scenes: bool = False
    threshold: float = THRESHOLD
    """Frame-to-frame change at which a new scene begins, in the unit of PySceneDetect's `ContentDetector`."""
    frames: int | None = None
    """Length of a window in frames."""
    seconds: float | None = None
    """Length of a window in seconds; `frames` and `seconds` exclude each other."""
    overlap: float = 0.0
    """Fraction of a window that the next window repeats, at least 0 and below 1."""
    min_frames: int = 1
    """Min number of frames of a window; shorter windows are skipped."""


def gather(
    source: Path,
    found: Iterable[Found],
    out: Path,
    cut: Cut,
    open_files: Callable[[Sequence[ClipsOfFile]], Iterable[OpenedFile | FailedItem]],
    *,
    caption: str | None = None,
) -> Import:
    """Opens all clips and returns their records; writes no files.

    Args:
        source: The folder or file that is imported.
        found: Output of a layout: clips, skipped clips (Rejection) and notes for the user (str).
        out: Folder of the new dataset; paths of records are relative to the folder of their split in it.
        cut: How clips are split into windows.
        open_files: Applies `open_file` to all files, in any order.
        caption: Caption of clips without a caption; None = these clips are skipped.
    """
    made, found = Import(), list(found)
    refused, files = group_by_file(found, caption)
    opened = {}
    for file in open_files(files):
        if isinstance(file, FailedItem):
            path, frames, _ = file.item
            file = OpenedFile(path, NO_INFO, dict.fromkeys(frames, ("failed", file.reason)))
        opened[file.path] = file
    keys: dict[str, str] = {}
    for number, item in enumerate(found):
        if isinstance(item, str):
            made.remarks.append(item)
        elif isinstance(item, Rejection):
            made.left_out.append(item)
        else:
            path = location(item)
            key = item.key or os.path.splitext(path)[0].removeprefix(f"{source}/").lstrip("/")
            while key in keys and (not item.key or keys[key] != path):  # a.mp4 next to a.mov
                key += os.path.splitext(path)[1] or "+"
            windows = refused[number] if number in refused else opened[path].windows[item.frames]
            if isinstance(windows, tuple):
                made.left_out.append(Rejection(escape_undecodable(key), *windows, escape_undecodable(path)))
            else:
                captions: dict[str, Any] = item.captions or {"caption": caption}
                clip = replace(item, path=path, key=key, captions=captions)
                add_clip(made, clip, opened[path].info, windows, out / item.split, cut.min_frames)
                made.constant_captions += not item.captions
                keys[key] = path
    return made


def group_by_file(found: Sequence[Found], caption: str | None) -> tuple[dict[int, Reason], list[ClipsOfFile]]:
    """Returns the clips that cannot be used, by their indices in `found`, and the other ones by file; opens no file.

    `caption` is the caption of clips without a caption; None = these clips cannot be used.
    """
    refused: dict[int, Reason] = {}
    clips: dict[str, dict[range | None, int]] = {}
    for number, item in enumerate(found):
        if not isinstance(item, Clip):
            continue
        path = location(item)
        if path.encode(errors="replace") != path.encode(errors="surrogateescape"):
            refused[number] = "bad_path", "the path is not valid Unicode, which a dataset file requires"
        elif item.frames in clips.get(path, ()):
            refused[number] = "duplicate", "the same file was already imported"
        else:
            clips.setdefault(path, {})[item.frames] = number
            if not item.captions and not caption:
                which = "the clip has" if item.frames is None else f"frames {item.frames[0]} to {item.frames[-1]} have"
                refused[number] = "no_caption", f"{which} no caption; --caption TEXT sets one for all such clips"
    files: list[ClipsOfFile] = []
    for path, of in clips.items():
        if frames := tuple(one for one, number in of.items() if number not in refused):
            files.append((path, frames, getattr(found[of[frames[0]]], "info", None)))
    return refused, files


def location(clip: Clip) -> str:
    """Returns the normalized path of a clip's media file, or its remote address."""
    path = str(clip.path)
    return path if is_remote(path) else os.path.normpath(path)


def write_import(made: Import, out: Path, header: dict[str, Any], *, force: bool) -> None:
    """Writes a dataset file per split, the list of skipped clips and, last, dataset.json.

    Args:
        made: Content to write.
        out: Folder of the dataset.
        header: First entries of dataset.json; they identify the dataset.
        force: Replace an existing import.

    Raises:
        FileExistsError: If the folder has other content, or contains the dataset and `force` is False.
    """
    if not prepare_folder(out, header, CONTENTS, force):
        raise FileExistsError(f"{out} already contains this dataset: use --force to import it again")
    for split, records in made.records.items():
        (out / split).mkdir()
        write_text(out / split / NAME, json_lines(records))
    write_text(out / LEFT_OUT, json_lines(map(asdict, made.left_out)))
    complete_folder(out, header | made.facts())


class OpenedFile(NamedTuple):
    """A media file whose clips are divided into windows."""

    path: str
    info: VideoInfo
    windows: dict[range | None, list[range] | Reason]
    """Windows of each clip by its frames, or the reason why it cannot be used."""


def open_file(cut: Cut, file: ClipsOfFile) -> OpenedFile:
    """Opens a media file and divides its clips into windows. Raises UserError if a library is missing."""
    path, clips, known = file
    try:
        status, info = (FileStatus(0, 0), known) if known else examine(path)
    except SampleError as error:
        return OpenedFile(path, NO_INFO, dict.fromkeys(clips, (error.reason, error.detail)))
    found: dict[range | None, list[range] | Reason] = {}
    for frames in clips:
        try:
            used = range(info.num_frames) if frames is None else frames
            if used.stop > info.num_frames:
                detail = f"frames {used.start}..{used.stop - 1} are requested, but the file has {info.num_frames}"
                raise SampleError("window_out_of_range", detail)
            found[frames] = list(windows_of(used, path, status.st_mtime_ns, info, cut))
        except SampleError as error:
            found[frames] = error.reason, error.detail
    return OpenedFile(path, info, found)


def add_clip(
    made: Import, clip: Clip, info: VideoInfo, windows: Sequence[range], folder: Path, min_frames: int
) -> None:
    """Adds the record of a clip to `made`, in place; its windows that are too short are added to `made.left_out`.

    If all windows are too short, the clip gets no record. Consecutive clips with one key are windows of one record.

    Args:
        made: Content of the dataset so far.
        clip: The clip, with key and captions.
        info: Metadata of its file.
        windows: Frame ranges into which the clip is divided.
        folder: Folder of the dataset file, which paths in the record are relative to.
        min_frames: Min number of frames of a window.
    """
    path, used = str(clip.path), []
    for window in windows:
        ends = {"start_frame": window.start, "end_frame": window.stop - 1, "temporal_interval": 1}
        if len(window) >= min_frames:
            used.append({**ends, **clip.captions})
        else:
            detail = f"window {window.start}..{window.stop - 1}; min_frames is {min_frames}"
            made.left_out.append(Rejection(f"{clip.key}:{window.start}", "too_short", detail, path))
    made.files[path] = info
    if used:
        records = made.records.setdefault(clip.split, [])
        if records and records[-1]["uuid"] == clip.key:  # another window of the same clip
            records[-1]["t2w_windows"] += used
            return
        times = {"duration": info.duration, "framerate": info.fps} if info.num_frames > 1 else {}
        record: dict[str, Any] = {"uuid": clip.key, "vision_path": relative_or_address(folder, path), **times}
        record |= {"nb_frames": info.num_frames, "width": info.width, "height": info.height}
        record |= {"t2w_windows": used, **clip.extra}
        for name, linked in clip.linked.items():
            record[name] = {**record[name], "path": relative_or_address(folder, linked)}
        records.append(record)


def relative_or_address(folder: Path, path: str) -> str:
    """Returns a path relative to `folder`; the address of a remote file is returned unchanged."""
    return path if is_remote(path) else os.path.relpath(path, folder)


def windows_of(frames: range, path: str, mtime_ns: int, info: VideoInfo, cut: Cut) -> Iterator[range]:
    """Divides a range of video frames into windows: at scene changes, and to the requested length.

    Args:
        frames: Frames of the video.
        path: The video file.
        mtime_ns: Modification time of the file in nanoseconds, for the cache of scene changes.
        info: Header data of the video file, for the frame rate.
        cut: How to divide: length, overlap, scenes.

    Yields:
        Ranges of frames, in order.

    Raises:
        SampleError: If the video cannot be read.
    """
    length = cut.frames if cut.seconds is None else max(1, round(cut.seconds * info.fps))
    for scene in split_at(
        frames, scene_starts(path, mtime_ns, cut.threshold) if cut.scenes and len(frames) > 1 else ()
    ):
        yield from split_by_length(scene, length, cut.overlap) if length is not None else [scene]


def split_at(frames: range, starts: Sequence[int]) -> list[range]:
    """Returns the consecutive ranges into which the frame numbers `starts` split a range of frames.

    Frame numbers outside of the range are ignored.
    """
    places = [frames.start, *(start for start in sorted(set(starts)) if start in frames[1:]), frames.stop]
    return [range(*ends) for ends in pairwise(places)]


def split_by_length(frames: range, length: int, overlap: float) -> Iterator[range]:
    """Yields windows of `length` frames; the last window is shorter if fewer frames remain.

    Consecutive windows share the fraction `overlap` of their frames.
    """
    step = max(1, round(length * (1 - overlap)))
    for start in range(frames.start, frames.stop, step):
        yield range(start, min(start + length, frames.stop))
        if start + length >= frames.stop:
            return


@lru_cache(maxsize=1)
def scene_starts(path: str, mtime_ns: int, threshold: float) -> tuple[int, ...]:
    """Returns the frame numbers at which a new scene begins, as found by PySceneDetect's `ContentDetector`.

    PySceneDetect returns times, which are converted to frame numbers with the time stamps of the file.

    Args:
        path: The video file.
        mtime_ns: Modification time of the file in nanoseconds; part of the cache key.
        threshold: Frame-to-frame change at which a new scene begins.

    Raises:
        UserError: If PySceneDetect is not installed.
        SampleError: If PySceneDetect cannot read the clip.
    """
    require_libraries("scene detection", "scenes", "scenedetect")
    if is_remote(path):
        raise SampleError("remote_path", "--cut scenes needs a local file: download it, or import without --cut")
    from scenedetect import ContentDetector, SceneManager, VideoOpenFailure, open_video

    manager = SceneManager()
    manager.add_detector(ContentDetector(threshold=threshold))
    try:
        manager.detect_scenes(open_video(path, backend="pyav", suppress_output=True))
    except VideoOpenFailure as error:
        raise SampleError("unreadable", f"PySceneDetect: {error}") from None
    if not (times := frame_times(path)):
        raise SampleError("no_time_stamps", "the file has no time stamps, so the first frame of each scene is unknown")
    spacing = times[-1] / max(1, len(times) - 1)
    return tuple(bisect_left(times, cut.seconds - spacing / 2) for cut in manager.get_cut_list())


def escape_undecodable(text: str) -> str:
    """Returns a file name in which bytes that are not valid Unicode are escaped, so that UTF-8 can encode it."""
    return text.encode(errors="backslashreplace").decode()


def json_lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
