"""LeRobot datasets v2.0, v2.1 and v3.0: an episode's frames of one camera are a clip, its task is the caption.

Format as in huggingface/lerobot: `datasets/utils.py`, `datasets/dataset_metadata.py` and the script that converts v2.1
to v3.0. v2 has an MP4 and a parquet file for each episode. v3 stores several episodes in a file, and the episode's row
in meta/episodes states the files and the start time.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import examine, frame_times
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import read_lines
from worldsmith.tools.datasets.imports.source_clips import SPLITS, Choices, Clip, Found, caption_of

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has; the names of other columns, such as actions, are written to the records."""
SAME_RATE = 0.001
"""Max relative difference between the frame rates of a file and of the dataset."""
SAME_TIME = 0.25
"""Max difference, in frames, between the first frame of an episode and its stated time."""


def recognise_lerobot(source: Path) -> str:
    """Returns text with the version that `source` states in meta/info.json; "" if it is not a LeRobot dataset."""
    version = read_json_object(source / INFO).get("codebase_version") if (source / INFO).is_file() else None
    return f"{INFO} states codebase_version {version}" if version else ""


def read_lerobot(source: Path, choices: Choices) -> Iterator[Found]:
    """Yields the clips of a LeRobot dataset, rejections, and a note on cameras that are not imported.

    Args:
        source: Folder of the dataset.
        choices: Cameras to import.

    Raises:
        ValueError: If the dataset is incomplete or invalid.
        UserError: If pyarrow is not installed.
    """
    try:
        dataset = open_dataset(source, choices.camera)
        if left := sorted({*dataset.videos} - {*dataset.cameras}):
            yield f"skipped cameras: {', '.join(left)}"
        for episode in dataset.episodes:
            yield from clips_of(dataset, episode)
    except KeyError as error:
        raise ValueError(f"{source} is not a complete LeRobot dataset: {error} is missing in its meta folder") from None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Metadata of a LeRobot dataset, and the cameras to import."""

    source: Path
    info: dict[str, Any]
    """Content of the dataset's meta/info.json."""
    is_v3: bool
    videos: list[str]
    """Video keys of all cameras."""
    cameras: list[str]
    """Cameras whose videos are imported."""
    episodes: list[dict[str, Any]]
    """Metadata of each episode by column name, such as `episode_index` and `length` (frames)."""
    tasks: dict[int, str]
    """Text of each task by task index."""

    def file(self, template: str, episode: dict[str, Any], prefix: str, **names: str) -> Path:
        """Returns the path of the data or video file that contains an episode.

        Args:
            template: Key of the path template in meta/info.json, such as "data_path".
            episode: Metadata of the episode.
            prefix: In v3, prefix of the metadata columns with chunk and file number, such as "data"; not used in v2.
            **names: Further values for the template.
        """
        index = episode["episode_index"]
        if self.is_v3:
            places = {name: episode[f"{prefix}/{name}"] for name in ("chunk_index", "file_index")}
        else:
            places = {"episode_chunk": index // self.info["chunks_size"], "episode_index": index}
        return self.source / self.info[template].format(**places, **names)

    def split(self, episode: dict[str, Any]) -> str:
        """Returns the split of an episode: "train", "val" or "test".

        Raises SampleError (other_split) if meta/info.json assigns the episode to none of these splits.
        """
        ranges = self.info.get("splits") or {"train": "0:"}
        for name, text in ranges.items():
            first, _, end = str(text).partition(":")
            if int(first or 0) <= episode["episode_index"] < int(end or 1 << 62) and name.lower() in SPLITS:
                return SPLITS[name.lower()]
        raise SampleError("other_split", f"splits are {ranges}")


def open_dataset(source: Path, cameras: Sequence[str]) -> Dataset:
    """Reads the metadata of a LeRobot dataset.

    Args:
        source: Folder of the dataset.
        cameras: Video keys to import; empty: all except depth videos.

    Raises:
        ValueError: If the metadata is invalid or not supported, or a camera does not exist.
        KeyError: If a value is missing.
    """
    info = read_json_object(source / INFO)
    if info["codebase_version"] not in VERSIONS:
        raise ValueError(f"{source} is LeRobot {info['codebase_version']}; supported versions: {', '.join(VERSIONS)}")
    check_info(source, info)
    videos = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
    if not videos:
        raise ValueError(f"{source} has no videos; images inside parquet files are not supported")
    if unknown := sorted({*cameras} - {*videos}):
        raise ValueError(f"{source} has no camera {', '.join(unknown)}; its cameras: {', '.join(videos)}")
    wanted = [name for name in videos if name in cameras or (not cameras and not is_depth(info["features"][name]))]
    is_v3 = info["codebase_version"] == "v3.0"
    if is_v3:
        episodes = [row for file in sorted((source / "meta/episodes").rglob("*.parquet")) for row in table_rows(file)]
        rows = table_rows(source / "meta/tasks.parquet")
        tasks = {row["task_index"]: row["task" if "task" in row else "__index_level_0__"] for row in rows}
    else:
        episodes = json_lines(source / "meta/episodes.jsonl")
        tasks = {line["task_index"]: line["task"] for line in json_lines(source / "meta/tasks.jsonl")}
    return Dataset(source, info, is_v3, videos, wanted, sorted(episodes, key=lambda row: row["episode_index"]), tasks)


def check_info(source: Path, info: dict[str, Any]) -> None:
    """Raises ValueError if a value in meta/info.json (`info`) has a wrong type, and KeyError if one is missing."""
    fps = info["fps"]
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < math.inf:
        raise ValueError(f"{source / INFO}: fps: expected a number above 0, found {fps!r:.80}")
    features = info["features"]
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise ValueError(f"{source / INFO}: features: expected an object of objects, found {features!r:.80}")
    size = info.get("chunks_size", 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{source / INFO}: chunks_size: expected an integer above 0, found {size!r:.80}")
    for name in ("data_path", "video_path"):
        if not isinstance(info[name], str):
            raise ValueError(f"{source / INFO}: {name}: expected a string, found {info[name]!r:.80}")
    if not isinstance(info.get("splits") or {}, dict):
        raise ValueError(f"{source / INFO}: splits: expected an object, found {info['splits']!r:.80}")


def json_lines(file: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file. Raises ValueError if a line is invalid."""
    try:
        return [json.loads(line) for line in read_lines(file)]
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} cannot be read as JSON Lines: {error}") from None


def is_depth(feature: dict[str, Any]) -> bool:
    """Returns whether a feature, as meta/info.json describes it, is a depth video."""
    details = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    return bool(details.get("is_depth_map") or details.get("video.is_depth_map"))


def clips_of(dataset: Dataset, episode: dict[str, Any]) -> Iterator[Clip | Rejection]:
    """Yields one clip, captioned with the task, per camera and task of an episode; most episodes have one task.

    A camera whose video or tasks cannot be used gives a Rejection. `episode` is the episode's metadata by column name.
    """
    index, features = episode["episode_index"], dataset.info["features"]
    kept = [name for name, f in features.items() if f["dtype"] not in ("video", "image") and name not in BOOKKEEPING]
    data = dataset.file("data_path", episode, "data")
    for camera in dataset.cameras:
        video = dataset.file("video_path", episode, f"videos/{camera}", video_key=camera)
        key = f"episode_{index:06d}/{camera}"
        try:
            split, start = dataset.split(episode), first_episode_frame(dataset, episode, camera, str(video))
            row, tasks = episode_rows(dataset, episode, data)
            for number, (task, part) in enumerate(split_by_task(tasks)):
                extra = {"episode": index, "camera": camera}
                if row is not None:
                    extra |= {"first_row": row + part.start, "first_frame": start + part.start, "columns": kept}
                yield Clip(
                    video,
                    caption_of(task),
                    split,
                    key + f"/{number}" * (len(part) < episode["length"]),
                    range(start + part.start, start + part.stop),
                    {"lerobot": extra},
                    {"lerobot": data} if row is not None else {},
                )
        except SampleError as error:
            yield Rejection(key, error.reason, error.detail, str(video))


def first_episode_frame(dataset: Dataset, episode: dict[str, Any], camera: str, video: str) -> int:
    """Returns the frame number at which an episode begins in a video file.

    Args:
        dataset: Metadata of the dataset.
        episode: Metadata of the episode.
        camera: Video key.
        video: Path of the video file.

    Raises:
        SampleError: If the file cannot be read, has another frame rate than the dataset (rate_differs), or has no
            frame at the time where the episode begins (times_differ).
    """
    status, info = examine(video)
    fps = dataset.info["fps"]
    if abs(info.fps - fps) > SAME_RATE * fps:
        raise SampleError("rate_differs", f"the file has {info.fps:g} fps, {INFO} states {fps:g}")
    if not dataset.is_v3:
        return 0
    begin, times = episode[f"videos/{camera}/from_timestamp"], times_of(video, status.st_mtime_ns)
    if not isinstance(begin, int | float) or not math.isfinite(begin):
        raise SampleError("times_differ", f"from_timestamp: expected seconds, found {begin}")
    frame = bisect_left(times, begin - SAME_TIME / fps)
    if frame == len(times) or times[frame] > begin + SAME_TIME / fps:
        raise SampleError("times_differ", f"no frame at {begin:g} s, where the episode begins")
    return frame


@lru_cache(maxsize=64)
def times_of(video: str, mtime_ns: int) -> list[float]:
    """Returns the time of each frame of a video in seconds; cached.

    `mtime_ns`, the modification time of the file in nanoseconds, is part of the cache key.
    """
    return frame_times(video)


def episode_rows(dataset: Dataset, episode: dict[str, Any], data: Path) -> tuple[int | None, list[str]]:
    """Returns (index of the episode's first row in the file `data`, task of each frame of the episode).

    The index is None if the file does not exist. Raises SampleError if the task of a frame is unknown, or if the file
    does not have one row per frame of the episode.
    """
    index, length = episode["episode_index"], episode["length"]
    if not data.is_file():
        if len(episode["tasks"]) > 1:
            raise SampleError("several_tasks", f"{data} does not exist, so the tasks of the frames are unknown")
        return None, ["".join(episode["tasks"])] * length
    first, tasks = data_rows(data, data.stat().st_mtime_ns).get(index, (0, []))
    if len(tasks) != length:
        raise SampleError("rows_differ", f"the episode has {length} frames, but {data} has {len(tasks)} rows for it")
    return first, [dataset.tasks[task] for task in tasks]


@lru_cache(maxsize=8)
def data_rows(data: Path, mtime_ns: int) -> dict[int, tuple[int, list[int]]]:
    """Returns episode index → (first row of the episode in the file `data`, task index of each of its rows); cached.

    `mtime_ns`, the modification time of the file in nanoseconds, is part of the cache key.
    """
    found: dict[int, tuple[int, list[int]]] = {}
    for number, row in enumerate(table_rows(data, "episode_index", "task_index")):
        first, tasks = found.setdefault(row["episode_index"], (number, []))
        if number == first + len(tasks):  # rows that do not follow directly are ignored
            tasks.append(row["task_index"])
    return found


def split_by_task(tasks: list[str]) -> Iterator[tuple[str, range]]:
    """Yields (task, frame range) for each run of consecutive frames with the same task."""
    start = 0
    for task, group in groupby(tasks):
        stop = start + sum(1 for _ in group)
        yield task, range(start, stop)
        start = stop


def table_rows(file: Path, *columns: str) -> list[dict[str, Any]]:
    """Returns the rows of a parquet file as dicts.

    Args:
        file: The file.
        *columns: Names of the columns to read; without names, all columns except statistics.

    Raises:
        UserError: If pyarrow is not installed.
        ValueError: If the file is invalid.
    """
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise UserError(
            f"{file} needs the library 'pyarrow', which is not installed: `pip install 'worldsmith[lerobot]'`"
        ) from None
    try:
        wanted = columns or [name for name in parquet.read_schema(file).names if not name.startswith("stats/")]
        rows: list[dict[str, Any]] = parquet.read_table(file, columns=list(wanted)).to_pylist()
    except ArrowInvalid as error:
        raise ValueError(f"{file} cannot be read as parquet: {error}") from None
    return rows
