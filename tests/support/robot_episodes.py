"""Small LeRobot datasets v2.1 and v3.0, written with pyarrow and PyAV; numbers and colors identify a frame."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
from pyarrow import parquet

FPS = 10
CAMERAS = {"observation.images.image": (32, 32), "observation.images.wrist_image": (32, 32)}
"""Camera → (W, H)."""
TASKS = ["pick up the cup | take the cup", "open the door"]
Rows = dict[str, list[Any]]


def color(episode: int, frame: int, camera: int) -> tuple[int, int, int]:
    return 20 + 6 * frame, 30 + 60 * episode, 40 + 90 * camera


def frames(episode: int, count: int, camera: int, size: tuple[int, int]) -> list[np.ndarray]:
    return [np.full((size[1], size[0], 3), color(episode, n, camera), np.uint8) for n in range(count)]


def encode(path: Path, images: Sequence[np.ndarray], *, fps: int = FPS, gop: int = 5, skip: Sequence[int] = ()) -> None:
    """Writes an MP4 with B-frames and a key frame every `gop` frames; the frames `skip` are missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        options = {"qp": "4", "g": str(gop), "bf": "2"}
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "yuv444p"
        stream.thread_count = 1
        for number, image in enumerate(images):
            if number not in skip:
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts = number
                container.mux(stream.encode(frame))
        container.mux(stream.encode())


def rows(episode: int, count: int, first: int = 0) -> Rows:
    """Actions [episode / 10, frame / 100, 0, 0, 0, 0, gripper] and states of an episode of `count` frames."""
    actions = [[episode / 10, n / 100, 0.0, 0.0, 0.0, n / 50, float(n % 2)] for n in range(count)]
    return {
        "action": actions,
        "observation.state": [[n / 100, episode / 10, 0.0, 0.1 * n, 0.0, 0.0] for n in range(count)],
        "timestamp": [n / FPS for n in range(count)],
        "frame_index": list(range(count)),
        "episode_index": [episode] * count,
        "index": list(range(first, first + count)),
        "task_index": [episode % len(TASKS)] * count,
    }


def write_episodes(
    folder: Path,
    version: str = "v3.0",
    lengths: Sequence[int] = (12, 9, 15),
    *,
    change: Callable[[int, Rows], None] = lambda episode, found: None,
    cameras: dict[str, tuple[int, int]] = CAMERAS,
    features: dict[str, Any] | None = None,
    encoding: dict[str, Any] | None = None,
) -> Path:
    """Writes a dataset; in v3.0, episodes 0 and 1 share files. `change` may damage the rows of an episode."""
    v3 = version == "v3.0"
    number = {"dtype": "float32", "names": None}
    found = {name: {"dtype": "video", "shape": [h, w, 3], "names": None} for name, (w, h) in cameras.items()}
    found |= {"action": {**number, "shape": [7]}, "observation.state": {**number, "shape": [6]}, **(features or {})}
    info = {
        "codebase_version": version,
        "fps": FPS,
        "features": found,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if v3
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if v3
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    tables = {episode: rows(episode, count) for episode, count in enumerate(lengths)}
    for episode, table in tables.items():
        change(episode, table)
    groups = [list(tables)[:2], *([episode] for episode in list(tables)[2:])] if v3 else [[one] for one in tables]
    episodes: list[dict[str, Any]] = []
    for file, members in enumerate(groups):
        paths = {"chunk_index": 0, "file_index": file, "episode_chunk": 0, "episode_index": members[0]}
        begin = 0.0
        for episode in members:
            entry: dict[str, Any] = {
                "episode_index": episode,
                "tasks": [TASKS[episode % 2]],
                "length": lengths[episode],
            }
            if v3:
                entry |= {"data/chunk_index": 0, "data/file_index": file, "episode_id": f"lab/{episode}"}
                for camera in cameras:
                    entry |= {f"videos/{camera}/chunk_index": 0, f"videos/{camera}/file_index": file}
                    entry |= {f"videos/{camera}/from_timestamp": begin}
            begin += lengths[episode] / FPS
            episodes.append(entry)
        for index, (camera, size) in enumerate(cameras.items()):
            images = [image for one in members for image in frames(one, lengths[one], index, size)]
            encode(folder / info["video_path"].format(video_key=camera, **paths), images, **(encoding or {}))
        joined = {name: [value for one in members for value in tables[one][name]] for name in tables[members[0]]}
        save(folder / info["data_path"].format(**paths), joined)
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    tasks = [{"task_index": index, "task": task} for index, task in enumerate(TASKS)]
    if v3:
        save(folder / "meta/episodes/chunk-000/file-000.parquet", transpose(episodes))
        save(folder / "meta/tasks.parquet", transpose(tasks))
    else:
        (folder / "meta/episodes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in episodes))
        (folder / "meta/tasks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in tasks))
    return folder


def transpose(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [record[name] for record in records] for name in records[0]}


def save(path: Path, columns: dict[str, list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)
