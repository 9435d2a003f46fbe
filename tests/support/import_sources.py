"""Small clips and captions in each layout that `worldsmith dataset import` reads, as their own tools write them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from PIL import Image

from worldsmith.data.video_writer import write_video

STRUCTURED = {"subjects": [{"description": "a bar"}], "temporal_caption": "A bar becomes red."}
FPS = 8
EPISODES = {0: ("pick it", 9), 1: ("place it", 5), 2: ("pick it", 13)}
"""Episode → its task and how many frames it has."""


def bars(count: int, shade: int = 0, size: tuple[int, int] = (64, 96)) -> np.ndarray:
    """Frames that become red, with an upper half of their own shade: uint8 [T, H, W, 3]."""
    frames = np.zeros((count, *size, 3), np.uint8)
    frames[..., 0] = (np.arange(count) * 10 % 250)[:, None, None]
    frames[:, : size[0] // 2, :, 1] = shade
    return frames


def clip(path: Path, count: int = 9, *, fps: float = FPS, shade: int = 200) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, bars(count, shade), fps, preset="ultrafast")
    return path


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def sidecar(source: Path) -> None:
    clip(source / "one.mp4")
    write(source / "one.txt", "a bar becomes red\n")
    clip(source / "deep/two.mp4", 13)
    write(source / "deep/two.json", STRUCTURED)


def images(source: Path) -> None:
    for number in range(2):
        path = write(source / f"{number}.txt", f"a bar, number {number}").with_suffix(".png" if number else ".jpg")
        Image.fromarray(bars(1, 90 * number)[0]).save(path)


def lines(source: Path) -> None:
    clip(source / "videos/one.mp4")
    clip(source / "videos/two.mp4", 13)
    write(source / "prompts.txt", "a bar becomes red\nanother bar\n")
    write(source / "videos.txt", "videos/one.mp4\nvideos/two.mp4\n")


def sat_shards(source: Path) -> None:
    """Two clips, one of them twice, as SAT names a copy; the captions are beside the shard."""
    files = [clip(source / f"{name}.mp4", count) for name, count in (("a", 9), ("b", 13))]
    with tarfile.open(source / "part.0.tar", "w") as tar:
        for key, file in (("a", files[0]), ("b", files[1]), ("a-$#%@&2", files[0])):
            for ending, content in (("id", key.encode()), ("mp4", file.read_bytes())):
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    for file in files:
        file.unlink()
    said = [{"key": "a", "caption": "a bar", "duration": 1.1, "fps": 8}, {"key": "b", "caption": "another bar"}]
    write(source / "part.meta.jsonl", "".join(json.dumps(item) + "\n" for item in said))


def table(source: Path) -> None:
    """As Hugging Face's videofolder, with a folder a split."""
    for split, count in (("train", 2), ("validation", 1)):
        rows = ["file_name,text"]
        for number in range(count):
            clip(source / split / f"{split}{number}.mp4", 9 + 4 * number)
            rows.append(f'{split}{number}.mp4,"a bar, number {number}"')
        write(source / split / "metadata.csv", "\n".join(rows) + "\n")


def pictures(source: Path) -> None:
    """As Hugging Face's imagefolder, with one table for all."""
    rows = []
    for number in range(2):
        path = write(source / f"train/{number}.png", "")
        Image.fromarray(bars(1, 90 * number)[0]).save(path)
        rows.append(json.dumps({"file_name": f"{number}.png", "text": f"a bar, number {number}"}) + "\n")
    write(source / "train/metadata.jsonl", "".join(rows))


def captions(source: Path) -> None:
    """As the published captioner writes them."""
    for name in ("one", "two"):
        clip(source / f"train/videos/{name}.mp4")
        write(source / f"train/captions/{name}/caption.txt", f"A bar, {name}.")
    write(source / "train/captions/one/caption.json", STRUCTURED)


def lerobot_info(version: str, **changes: Any) -> dict[str, Any]:
    camera = {"dtype": "video", "shape": [64, 96, 3], "names": ["height", "width", "channels"]}
    numbers = {"dtype": "float32", "shape": [2], "names": None}
    index = {"dtype": "int64", "shape": [1], "names": None}
    features = {"observation.images.top": camera, "observation.images.wrist": camera, "action": numbers}
    features |= {"observation.state": numbers, "episode_index": index, "task_index": index}
    v2 = version.startswith("v2")
    return {
        "codebase_version": version,
        "fps": FPS,
        "features": features,
        "splits": {"train": f"0:{len(EPISODES)}"},
        "chunks_size": 2 if v2 else 1000,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        if v2
        else "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
        if v2
        else "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        **changes,
    }


CAMERAS = ("observation.images.top", "observation.images.wrist")
TASKS = {"pick it": 0, "place it": 1}


def rows(episode: int, tasks: list[str]) -> pandas.DataFrame:
    """The data of an episode: its n-th action is (episode, n)."""
    count = len(tasks)
    return pandas.DataFrame(
        {
            "action": [[float(episode), float(n)] for n in range(count)],
            "observation.state": [[float(n), 0.0] for n in range(count)],
            "episode_index": [episode] * count,
            "task_index": [TASKS[task] for task in tasks],
        }
    )


def lerobot_v2(source: Path, **changes: Any) -> None:
    write(source / "meta/info.json", lerobot_info("v2.1", **changes))
    write(
        source / "meta/tasks.jsonl", "".join(json.dumps({"task_index": i, "task": t}) + "\n" for t, i in TASKS.items())
    )
    episodes = [{"episode_index": i, "tasks": [task], "length": n} for i, (task, n) in EPISODES.items()]
    write(source / "meta/episodes.jsonl", "".join(json.dumps(episode) + "\n" for episode in episodes))
    for index, (task, count) in EPISODES.items():
        for camera in CAMERAS:
            clip(source / f"videos/chunk-{index // 2:03d}/{camera}/episode_{index:06d}.mp4", count, shade=80 * index)
        parquet(rows(index, [task] * count), source / f"data/chunk-{index // 2:03d}/episode_{index:06d}.parquet")


def lerobot_v3(source: Path, **changes: Any) -> None:
    """Episodes 0 and 1 share a file, of data and of each camera; episode 2 has files of its own."""
    write(source / "meta/info.json", lerobot_info("v3.0", **changes))
    tasks = pandas.DataFrame({"task_index": list(TASKS.values())}, index=pandas.Index(TASKS, name="task"))
    parquet(tasks, source / "meta/tasks.parquet", index=True)
    episodes: list[dict[str, Any]] = []
    for file, members in enumerate(((0, 1), (2,))):
        begin = 0.0
        for index in members:
            task, count = EPISODES[index]
            episode: dict[str, Any] = {"episode_index": index, "tasks": [task], "length": count}
            episode |= {"data/chunk_index": 0, "data/file_index": file, "stats/action/mean": [0.0, 0.0]}
            for camera in CAMERAS:
                episode |= {f"videos/{camera}/chunk_index": 0, f"videos/{camera}/file_index": file}
                episode |= {
                    f"videos/{camera}/from_timestamp": begin,
                    f"videos/{camera}/to_timestamp": begin + count / FPS,
                }
            begin += count / FPS
            episodes.append(episode)
        for camera in CAMERAS:
            path = source / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_video(path, np.concatenate([bars(EPISODES[i][1], 80 * i) for i in members]), FPS, preset="ultrafast")
        data = pandas.concat([rows(i, [EPISODES[i][0]] * EPISODES[i][1]) for i in members])
        parquet(data, source / f"data/chunk-000/file-{file:03d}.parquet")
    parquet(pandas.DataFrame(episodes), source / "meta/episodes/chunk-000/file-000.parquet")


def parquet(frame: pandas.DataFrame, path: Path, *, index: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path, index=index)


SOURCES: dict[str, tuple[Callable[[Path], None], str]] = {
    "sidecar": (sidecar, "sidecar"),
    "images": (images, "sidecar"),
    "lines": (lines, "lines"),
    "table": (table, "table"),
    "pictures": (pictures, "table"),
    "captions": (captions, "captions"),
    "sat_shards": (sat_shards, "sat_shards"),
    "lerobot_v2": (lerobot_v2, "lerobot"),
    "lerobot_v3": (lerobot_v3, "lerobot"),
}
"""Name → how to make one, and the layout that it has."""
