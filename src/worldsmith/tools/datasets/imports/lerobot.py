"""LeRobot datasets v2.0, v2.1 and v3.0: an episode's frames of one camera are a clip, its task is the caption."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from worldsmith.data.robots.lerobot import INFO, SAME_TIME, SOURCE, LeRobotDataset, open_dataset, table_rows
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import examine, frame_times
from worldsmith.files.json_file import read_json_object
from worldsmith.files.remote import file_exists, join_address
from worldsmith.tools.datasets.imports.source_clips import SPLITS, Choices, Clip, Found, caption_of

BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has; the names of other columns, such as actions, are written to the records."""
SAME_RATE = 0.001
"""Max relative difference between the frame rates of a file and of the dataset."""


def recognise_lerobot(source: Path | str) -> str:
    """Returns text with the version that `source` states in meta/info.json; "" if it is not a LeRobot dataset."""
    info = join_address(str(source), INFO)
    version = read_json_object(info).get("codebase_version") if file_exists(info) else None
    return f"{INFO} states codebase_version {version}" if version else ""


def read_lerobot(source: Path | str, choices: Choices) -> Iterator[Found]:
    """Yields the clips of a LeRobot dataset, rejections, and a note on cameras that are not imported.

    Args:
        source: Path or address of the folder of the dataset.
        choices: Cameras to import.

    Raises:
        ValueError: If the dataset is incomplete or invalid.
        UserError: If pyarrow is not installed.
    """
    data_rows.cache_clear()  # files may have been replaced since this process has read another dataset
    times_of.cache_clear()
    try:
        dataset = open_dataset(str(source), choices.camera)
        if left := sorted({*dataset.videos} - {*dataset.cameras}):
            yield f"skipped cameras: {', '.join(left)}"
        for episode in dataset.episodes:
            yield from clips_of(dataset, episode)
    except KeyError as error:
        raise ValueError(f"{source} is not a complete LeRobot dataset: {error} is missing in its meta folder") from None


def clips_of(dataset: LeRobotDataset, episode: dict[str, Any]) -> Iterator[Clip | Rejection]:
    """Yields one clip, captioned with the task, per camera and task of an episode; most episodes have one task.

    A camera whose metadata, video or tasks cannot be used gives a Rejection. `episode` is the episode's metadata by
    column name.
    """
    index, features = episode["episode_index"], dataset.info["features"]
    kept = [name for name, f in features.items() if f["dtype"] not in ("video", "image") and name not in BOOKKEEPING]
    for camera in dataset.cameras:
        key, (path, record) = f"episode_{index:06d}/{camera}", episode[SOURCE]
        try:
            data = dataset.file("data_path", episode, "data")
            video = dataset.file("video_path", episode, f"videos/{camera}", video_key=camera)
            path, record = video, None
            split, start = split_of(dataset, episode), first_episode_frame(dataset, episode, camera, video)
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
            yield Rejection(key, error.reason, error.detail, path, index=record)


def first_episode_frame(dataset: LeRobotDataset, episode: dict[str, Any], camera: str, video: str) -> int:
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
    info = examine(video)[1]
    fps = dataset.info["fps"]
    if abs(info.fps - fps) > SAME_RATE * fps:
        raise SampleError("rate_differs", f"the file has {info.fps:g} fps, {INFO} states {fps:g}")
    if not dataset.is_v3:
        return 0
    begin, times = episode[f"videos/{camera}/from_timestamp"], times_of(video)
    if not isinstance(begin, int | float) or not math.isfinite(begin):
        raise SampleError("times_differ", f"from_timestamp: expected seconds, found {begin}")
    frame = bisect_left(times, begin - SAME_TIME / fps)
    if frame == len(times) or times[frame] > begin + SAME_TIME / fps:
        raise SampleError("times_differ", f"no frame at {begin:g} s, where the episode begins")
    return frame


@lru_cache(maxsize=64)
def times_of(video: str) -> list[float]:
    """Returns the time of each frame of a video in seconds; cached during an import."""
    return frame_times(video)


def split_of(dataset: LeRobotDataset, episode: dict[str, Any]) -> str:
    """Returns the split of an episode: "train", "val" or "test".

    Raises SampleError (other_split) if meta/info.json assigns the episode to none of these splits.
    """
    ranges = dataset.info.get("splits") or {"train": "0:"}
    for name, text in ranges.items():
        first, _, end = str(text).partition(":")
        if int(first or 0) <= episode["episode_index"] < int(end or 1 << 62) and name.lower() in SPLITS:
            return SPLITS[name.lower()]
    raise SampleError("other_split", f"splits are {ranges}")


def episode_rows(dataset: LeRobotDataset, episode: dict[str, Any], data: str) -> tuple[int | None, list[str]]:
    """Returns (index of the episode's first row in the file `data`, task of each frame of the episode).

    The index is None if the file does not exist. Raises SampleError if the task of a frame is unknown, or if the file
    does not have one row per frame of the episode.
    """
    index, length = episode["episode_index"], episode["length"]
    if not file_exists(data):
        if len(episode["tasks"]) > 1:
            raise SampleError("several_tasks", f"{data} does not exist, so the tasks of the frames are unknown")
        return None, ["".join(episode["tasks"])] * length
    first, tasks = data_rows(data).get(index, (0, []))
    if len(tasks) != length:
        raise SampleError("rows_differ", f"the episode has {length} frames, but {data} has {len(tasks)} rows for it")
    for row, task in enumerate(tasks, first):
        if task not in dataset.tasks:
            raise SampleError("no_task", f"{data}, row {row}: task {task} has no text in the list of tasks")
    return first, [dataset.tasks[task] for task in tasks]


@lru_cache(maxsize=8)
def data_rows(data: str) -> dict[int, tuple[int, list[int]]]:
    """Returns episode index → (first row of the episode in the file `data`, task index of each of its rows).

    The result is cached during an import.
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
