"""Reads the metadata of LeRobot datasets v2.0, v2.1 and v3.0, and the tables of their episodes.

Format as in huggingface/lerobot: `datasets/utils.py`, `datasets/dataset_metadata.py` and the script that converts v2.1
to v3.0. v2 has an MP4 and a parquet file for each episode. v3 stores several episodes in a file, and the episode's row
in meta/episodes states the files and the start time. The folder may be in an object store.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.data.stream.errors import SampleError, read_error
from worldsmith.files.errors import require_libraries
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import read_bytes, read_lines
from worldsmith.files.remote import is_remote, join_address, remote_facts
from worldsmith.files.remote_folder import list_remote

if TYPE_CHECKING:
    import numpy as np

    Rows = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
    """Rows of an episode: seconds after its start, float64 [rows]; task index, int64 [rows]; column → values, float32
    [rows, width]."""

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
SAME_TIME = 0.25
"""Max difference, in frames, between the time of a frame and its stated time."""
SOURCE = "\0source"
"""Key in the metadata of an episode for (file, 0-based row) that they were read from; never the name of a column."""
INFO_CHECKS: list[tuple[str, str, Callable[[Any], bool]]] = [
    ("fps", "a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf),
    (
        "features",
        "an object of objects",
        lambda value: isinstance(value, dict) and {*map(type, value.values())} <= {dict},
    ),
    ("chunks_size", "an integer above 0", lambda value: type(value) is int and value > 0),
    ("data_path", "a string", lambda value: isinstance(value, str)),
    ("video_path", "a string", lambda value: isinstance(value, str)),
    ("splits", "an object", lambda value: value is None or isinstance(value, dict)),
]
"""Keys of meta/info.json, each with the expected value and its check."""
OPTIONAL = ("chunks_size", "splits")
"""Keys of meta/info.json that may be missing."""


@dataclass(frozen=True, slots=True)
class LeRobotDataset:
    """Metadata of a LeRobot dataset, and the cameras to import."""

    source: str
    """Path or address of the folder."""
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

    def file(self, template: str, episode: dict[str, Any], prefix: str, **names: str) -> str:
        """Returns the path or address of the data or video file that contains an episode.

        Args:
            template: Key of the path template in meta/info.json, such as "data_path".
            episode: Metadata of the episode.
            prefix: In v3, prefix of the metadata columns with chunk and file number, such as "data"; not used in v2.
            **names: Further values for the template.

        Raises:
            SampleError: If the metadata contain no valid number of a file (bad_metadata).
        """
        index = episode["episode_index"]
        if self.is_v3:
            numbers = {name: episode[f"{prefix}/{name}"] for name in ("chunk_index", "file_index")}
        else:
            numbers = {"episode_chunk": index // self.info["chunks_size"], "episode_index": index}
        try:
            return join_address(self.source, str(Path(self.info[template].format(**numbers, **names))))
        except (TypeError, ValueError):
            detail = f"row {episode[SOURCE][1]}: {prefix}: expected the numbers of a file, found {numbers}"
            raise SampleError("bad_metadata", detail) from None

    def relative_path(self, path: str) -> str:
        """Returns a path from `file` without the folder of the dataset."""
        return path.removeprefix(join_address(self.source, ""))


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode: its rows, and the videos that show it."""

    index: int
    data: str
    """Path of the data file."""
    times: np.ndarray
    """Seconds after the start of the episode, float64 [frames]."""
    tasks: np.ndarray
    """Index of the task of each frame, int64 [frames]."""
    columns: dict[str, np.ndarray]
    """Column → values [frames, width], float32."""
    videos: dict[str, tuple[str, float]]
    """Camera → (path of the video, seconds at which the episode begins in it)."""

    @property
    def key(self) -> str:
        return f"episode_{self.index:06d}"

    def digest(self) -> str:
        """Returns a checksum of times, task indices and values."""
        found = hashlib.sha256(json.dumps(list(self.columns)).encode())
        for values in (self.times, self.tasks, *self.columns.values()):
            found.update(values.tobytes())
        return found.hexdigest()[:16]


def open_dataset(source: str, cameras: Sequence[str]) -> LeRobotDataset:
    """Reads the metadata of a LeRobot dataset.

    Args:
        source: Path or address of the folder of the dataset.
        cameras: Video keys to import; empty: all except depth videos.

    Raises:
        ValueError: If the metadata is invalid or not supported, or a camera does not exist.
        KeyError: If a value is missing.
        OSError: If a file cannot be read.
    """
    source = source.rstrip("/") if is_remote(source) else str(Path(source.removeprefix("file://")))
    remote_facts.cache_clear()  # files may have been replaced since this process has read another dataset
    info = read_json_object(join_address(source, INFO))
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
        tables = {file: table_rows(file) for file in tables_below(join_address(source, "meta/episodes"))}
        rows = table_rows(join_address(source, "meta/tasks.parquet"))
        texts = {row["task_index"]: row["task" if "task" in row else "__index_level_0__"] for row in rows}
    else:
        file = join_address(source, "meta/episodes.jsonl")
        tables = {file: json_lines(file)}
        texts = {line["task_index"]: line["task"] for line in json_lines(join_address(source, "meta/tasks.jsonl"))}
    episodes = [row | {SOURCE: (file, number)} for file, rows in tables.items() for number, row in enumerate(rows)]
    if wrong := [row for row in episodes if type(row["episode_index"]) is not int]:
        path, row = wrong[0][SOURCE]
        raise ValueError(
            f"{path}, row {row}: episode_index: expected an integer, found {wrong[0]['episode_index']!r:.80}"
        )
    tasks = {index: text for index, text in texts.items() if isinstance(text, str)}
    return LeRobotDataset(
        source, info, is_v3, videos, wanted, sorted(episodes, key=lambda row: row["episode_index"]), tasks
    )


def tables_below(folder: str) -> list[str]:
    """Returns the paths or addresses of all parquet files below a folder, in order."""
    if is_remote(folder):
        return sorted(join_address(folder, name) for name in list_remote(folder) if name.endswith(".parquet"))
    return [str(file) for file in sorted(Path(folder).rglob("*.parquet"))]


def check_info(source: str, info: dict[str, Any]) -> None:
    """Raises ValueError if a value in meta/info.json (`info`) has a wrong type, and KeyError if one is missing."""
    for name, expected, is_valid in INFO_CHECKS:
        if (name in info or name not in OPTIONAL) and not is_valid(info[name]):
            raise ValueError(f"{join_address(source, INFO)}: {name}: expected {expected}, found {info[name]!r:.80}")


def json_lines(file: str) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file. Raises ValueError if a line is invalid."""
    try:
        return [json.loads(line) for line in read_lines(file)]
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} cannot be read as JSON Lines: {error}") from None


def is_depth(feature: dict[str, Any]) -> bool:
    """Returns whether a feature, as meta/info.json describes it, is a depth video."""
    details = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    return bool(details.get("is_depth_map") or details.get("video.is_depth_map"))


def read_episodes(
    dataset: LeRobotDataset, file: str, episodes: Sequence[dict[str, Any]], widths: Mapping[str, int]
) -> Iterator[Rows | SampleError]:
    """Yields the rows of each episode of a data file, or the error for which they cannot be used.

    Args:
        dataset: Metadata of the dataset.
        file: The data file.
        episodes: Metadata of the episodes to read.
        widths: Number of values of each column to read.
    """
    import numpy as np

    try:
        table = read_parquet(file, ("episode_index", "task_index", "timestamp", *widths))
    except (ValueError, OSError) as error:
        fault = read_error(error) if isinstance(error, OSError) else SampleError("bad_table", str(error))
        yield from [fault] * len(episodes)
        return
    found = table["episode_index"].to_numpy()
    order = np.argsort(found, kind="stable")
    for episode in episodes:
        try:
            first, end = np.searchsorted(found, [episode["episode_index"], episode["episode_index"] + 1], sorter=order)
            rows = order[first:end]
            if len(rows) != episode["length"] or (len(rows) and rows[-1] - rows[0] + 1 != len(rows)):
                raise SampleError("rows_differ", f"expected {episode['length']} consecutive rows, found {len(rows)}")
            yield check_rows(dataset, table.slice(int(rows[0]) if len(rows) else 0, len(rows)), rows, widths)
        except SampleError as error:
            yield error


def check_rows(dataset: LeRobotDataset, table: Any, rows: np.ndarray, widths: Mapping[str, int]) -> Rows:
    """Returns the rows of an episode. Raises SampleError, with the row in the file, if a value cannot be used.

    Args:
        dataset: Metadata of the dataset.
        table: Table of pyarrow with the rows of the episode.
        rows: Index of each row in the file.
        widths: Number of values of each column to read.
    """
    import numpy as np

    columns = {name: column_values(table[name], name, width, rows) for name, width in widths.items()}
    times = column_values(table["timestamp"], "timestamp", 1, rows)[:, 0]
    step = 1 / dataset.info["fps"]
    gaps = np.flatnonzero(np.abs(np.diff(times) - step) > SAME_TIME * step)
    if len(gaps):
        before, after = times[gaps[0]], times[gaps[0] + 1]
        raise SampleError(
            "times_differ", f"row {rows[gaps[0] + 1]}: {after:g} s follows {before:g} s: expected steps of {step:g} s"
        )
    tasks = table["task_index"].to_numpy()
    for task in np.unique(tasks):
        if int(task) not in dataset.tasks:
            row = rows[np.flatnonzero(tasks == task)[0]]
            raise SampleError("no_task", f"row {row}: task {task} has no text in the list of tasks")
    return times, tasks, {name: values.astype(np.float32) for name, values in columns.items()}


def column_values(column: Any, name: str, width: int, rows: np.ndarray) -> np.ndarray:
    """Returns the values [rows, width] of a column in float64.

    Raises SampleError (wrong_width, bad_values) with the first wrong row.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # a table without rows
        return np.zeros((0, width))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        lengths = compute.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            found = lengths[wrong[0]] if lengths[wrong[0]] >= 0 else "no"
            raise SampleError("wrong_width", f"row {rows[wrong[0]]}: {name} has {found} values: expected {width}")
        array = array.flatten()
    elif width != 1:
        raise SampleError("wrong_width", f"row {rows[0]}: {name} has 1 value: expected {width}")
    try:
        values = array.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, width)
    except (TypeError, ValueError):
        raise SampleError("bad_values", f"{name}: expected numbers, found {array.type}") from None
    wrong = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max).all(1))
    if len(wrong):
        raise SampleError("bad_values", f"row {rows[wrong[0]]}: {name} contains {values[wrong[0]].tolist()}")
    return values


def table_rows(file: str, *columns: str) -> list[dict[str, Any]]:
    """Returns the rows of a parquet file as dicts.

    Args:
        file: Path or address of the file.
        *columns: Names of the columns to read; without names, all columns except statistics.

    Raises:
        UserError: If pyarrow is not installed.
        ValueError: If the file is invalid.
    """
    rows: list[dict[str, Any]] = read_parquet(file, columns).to_pylist()
    return rows


def read_parquet(file: str, columns: Sequence[str] = ()) -> Any:
    """Returns the columns of a parquet file as a table of pyarrow; without names, all columns except statistics.

    Raises:
        UserError: If pyarrow is not installed.
        ValueError: If the file is invalid, or has no column of one of the names.
    """
    require_libraries(file, "lerobot", "pyarrow")
    from pyarrow import ArrowInvalid, BufferReader, parquet

    content = BufferReader(read_bytes(file)) if is_remote(file) else file
    try:
        names = parquet.read_schema(content).names
        if missing := [name for name in columns if name not in names]:
            raise ValueError(f"{file} has no column {', '.join(missing)}; its columns: {', '.join(names)}")
        wanted = columns or [name for name in names if not name.startswith("stats/")]
        return parquet.read_table(content, columns=list(wanted))
    except ArrowInvalid as error:
        raise ValueError(f"{file} cannot be read as parquet: {error}") from None


def width_of(feature: dict[str, Any]) -> int:
    """Returns the number of values of a column with numbers, as meta/info.json describes it; 0 for other columns."""
    shape = feature.get("shape") or [1]
    is_number = str(feature.get("dtype", "")).startswith(("float", "int", "uint", "bool"))
    return int(shape[0]) if is_number and len(shape) == 1 else 0


def video_of(source: LeRobotDataset, metadata: dict[str, Any], camera: str) -> tuple[str, float]:
    """Returns (path, seconds at which the episode begins) of the video of an episode.

    Raises SampleError (bad_metadata) if one of them is invalid in the metadata of the episode.
    """
    prefix = f"videos/{camera}"
    start = metadata[f"{prefix}/from_timestamp"] if source.is_v3 else 0.0
    if not isinstance(start, int | float) or not math.isfinite(start):
        detail = f"row {metadata[SOURCE][1]}: {prefix}/from_timestamp: expected seconds, found {start!r:.80}"
        raise SampleError("bad_metadata", detail)
    return source.file("video_path", metadata, prefix, video_key=camera), float(start)
