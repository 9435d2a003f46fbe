"""Writes demonstrations of the PushT task as a LeRobot v3.0 dataset (about 4 episodes per second).

    python examples/pusht/make_dataset.py OUT [--episodes 200] [--val-episodes 10] [--size 96] [--hold 16]

A robot, seen from above, pushes a T-shaped block onto its goal. `demonstrations.npz` has the actions, which
`plan_demonstrations.py` has planned; the environment renders the frames. They are its observations, because its
`render()` also draws the last action, which a model could then read from the image. With the chunk length of a policy
as `--hold`, a chunk starts at every step before success, so that the policy also learns the last ones. Requires
`worldsmith[lerobot,sim]`.

Layout as in huggingface/lerobot, docs/source/lerobot-dataset-v3.mdx and datasets/utils.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from worldsmith.actions.action import make_progress_reporter
from worldsmith.data.dataset_folder import complete_folder, prepare_folder, write_json
from worldsmith.data.video_writer import write_video

ENVIRONMENT, FPS = "gym_pusht:gym_pusht/PushT-v0", 10
INSTRUCTION = "Push the T-shaped block onto the T-shaped target."
CAMERA = "observation.image"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


class Episode(NamedTuple):
    """An episode of T steps. Positions are (x, y) in px of a 512×512 image."""

    states: np.ndarray
    """float32 [T, 2], position of the robot before each action."""
    actions: np.ndarray
    """float32 [T, 2], target positions of the robot."""
    coverages: np.ndarray
    """float32 [T], fraction of the goal that the block covers after each action."""
    success: np.ndarray
    """bool [T], whether the task is done after each action."""


def read_demonstrations(count: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields the first `count` demonstrations.

    Each is (seed of the initial state, actions as int16 [T, 2], target at which the robot stays after success).
    """
    with np.load(Path(__file__).with_name("demonstrations.npz")) as stored:
        episodes = np.split(stored["actions"], np.cumsum(stored["lengths"])[:-1])
        yield from zip(stored["seeds"][:count].tolist(), episodes, stored["rests"])


def make_environment(size: int) -> Any:
    options = {"observation_width": size, "observation_height": size}
    return gymnasium.make(ENVIRONMENT, obs_type="pixels_agent_pos", **options).unwrapped


def replay(env: Any, seed: int, actions: np.ndarray, rest: np.ndarray, hold: int) -> tuple[np.ndarray, Episode] | None:
    """Replays a demonstration, and `hold` steps after it in which the robot goes to `rest` and stays there.

    Returns the frames before each action (uint8 [T, H, W, 3]) and the rest of the episode; None if the task is not done
    exactly at the last action of the demonstration.
    """
    observation, _ = env.reset(seed=seed)
    frames, rows = [], []
    for step, action in enumerate(np.concatenate([actions, rest[None].repeat(hold, 0)]).astype(np.float32)):
        frames.append(observation["pixels"].copy())
        state = observation["agent_pos"].astype(np.float32)
        observation, _, _, _, info = env.step(action)
        if step < len(actions) and info["is_success"] != (step == len(actions) - 1):
            return None
        rows.append((state, action, np.float32(info["coverage"]), bool(info["is_success"])))
    return np.stack(frames), Episode(*(np.array(column) for column in zip(*rows)))


def sum_colors(frames: np.ndarray) -> np.ndarray:
    """Returns count, sum, sum of squares, min and max of each color in [0, 1]: float [5, 3]."""
    values = frames.reshape(-1, 3) / 255.0
    return np.stack([np.full(3, len(values)), values.sum(0), (values**2).sum(0), values.min(0), values.max(0)])


def describe_vectors(values: np.ndarray) -> dict[str, list[float]]:
    """Returns the statistics of vectors [N, width]: name -> one value per channel."""
    found = {name: getattr(values.astype(float), name)(0) for name in ("min", "max", "mean", "std")}
    found |= {f"q{percent:02d}": np.percentile(values, percent, axis=0) for percent in (1, 10, 50, 90, 99)}
    return {name: value.tolist() for name, value in found.items()} | {"count": [len(values)]}


def write_table(file: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), file)


def write_rows(out: Path, episodes: list[Episode]) -> None:
    """Writes the rows of all steps, the list of episodes, and the tasks."""
    lengths = np.array([len(episode.actions) for episode in episodes])
    states, actions, coverages, success = (np.concatenate(column) for column in zip(*episodes))
    steps, ends = np.concatenate([np.arange(length) for length in lengths]), np.cumsum(lengths)
    numbers, zeros = np.arange(len(episodes)), np.zeros(len(episodes), np.int64)
    columns = {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(states.reshape(-1)), 2),
        "action": pa.FixedSizeListArray.from_arrays(pa.array(actions.reshape(-1)), 2),
        "next.reward": np.clip(coverages / 0.95, 0, 1).astype(np.float32),
        "next.done": steps == np.repeat(lengths, lengths) - 1,
        "next.success": success,
        "timestamp": (steps / FPS).astype(np.float32),
        "frame_index": steps,
        "episode_index": np.repeat(numbers, lengths),
        "index": np.arange(len(steps)),
        "task_index": np.zeros(len(steps), np.int64),
    }
    write_table(out / DATA_PATH.format(chunk_index=0, file_index=0), columns)
    columns = {
        "episode_index": numbers,
        "tasks": [[INSTRUCTION]] * len(episodes),
        "length": lengths,
        "dataset_from_index": ends - lengths,
        "dataset_to_index": ends,
        f"videos/{CAMERA}/chunk_index": zeros,
        f"videos/{CAMERA}/file_index": numbers,
        f"videos/{CAMERA}/from_timestamp": zeros / FPS,
        f"videos/{CAMERA}/to_timestamp": lengths / FPS,
    }
    columns |= {f"{part}/{name}_index": zeros for part in ("data", "meta/episodes") for name in ("chunk", "file")}
    write_table(out / "meta/episodes/chunk-000/file-000.parquet", columns)
    # LeRobot reads the task from the index of the table, which pandas finds in this entry.
    task = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    index = json.dumps({"index_columns": ["task"], "column_indexes": [], "columns": [task]})
    write_table(out / "meta/tasks.parquet", {"task_index": [0], "task": [INSTRUCTION]}, {"pandas": index})


def write_info(out: Path, episodes: list[Episode], colors: np.ndarray, size: int, val_episodes: int) -> None:
    """Writes meta/info.json and meta/stats.json; `colors` has the results of `sum_colors`, [episodes, 5, 3]."""
    total, train = sum(len(episode.actions) for episode in episodes), len(episodes) - val_episodes
    count, summed, squares = colors[:, :3].sum(0)
    mean = summed / count
    found = {
        "min": colors[:, 3].min(0),
        "max": colors[:, 4].max(0),
        "mean": mean,
        "std": (squares / count - mean**2) ** 0.5,
    }
    stats = {
        CAMERA: {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()} | {"count": [total]},
        "observation.state": describe_vectors(np.concatenate([episode.states for episode in episodes])),
        "action": describe_vectors(np.concatenate([episode.actions for episode in episodes])),
    }
    write_json(out / "meta/stats.json", stats)
    point = {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
    scalars = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
    scalars |= {"next.reward": "float32", "timestamp": "float32", "next.done": "bool", "next.success": "bool"}
    video = {"video.fps": FPS, "video.codec": "h264", "video.pix_fmt": "yuv420p", "has_audio": False}
    features = {
        CAMERA: {"dtype": "video", "shape": [size, size, 3], "names": ["height", "width", "channels"], "info": video},
        "observation.state": point,
        "action": point,
        **{name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in scalars.items()},
    }
    info = {
        "codebase_version": "v3.0",
        "robot_type": "pusht",
        "total_episodes": len(episodes),
        "total_frames": total,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": FPS,
        "splits": {"train": f"0:{train}"} | ({"val": f"{train}:{len(episodes)}"} if val_episodes else {}),
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH,
        "features": features,
    }
    write_json(out / "meta/info.json", info)


def make_dataset(out: Path, episodes: int, val_episodes: int, size: int, hold: int) -> tuple[int, list[int]] | None:
    """Writes the dataset; returns (number of its episodes, seeds of dropped replays), or None if it is complete."""
    header = {"dataset": "pusht", "episodes": episodes, "val_episodes": val_episodes, "size": size, "hold": hold}
    if not prepare_folder(out, header, ("meta", "data", "videos"), force=False):
        return None
    env, report, kept, colors, dropped = make_environment(size), make_progress_reporter("pusht"), [], [], []
    for number, (seed, actions, rest) in enumerate(read_demonstrations(episodes), 1):
        if (found := replay(env, seed, actions, rest, hold)) is None:
            dropped.append(seed)
        else:
            video = out / VIDEO_PATH.format(video_key=CAMERA, chunk_index=0, file_index=len(kept))
            video.parent.mkdir(parents=True, exist_ok=True)
            write_video(video, found[0], FPS)
            colors.append(sum_colors(found[0]))
            kept.append(found[1])
        report(number, episodes)
    if len(kept) <= val_episodes:
        raise SystemExit(
            f"{len(dropped)} of {episodes} replays do not succeed with this version of gym-pusht or pymunk"
        )
    write_rows(out, kept)
    write_info(out, kept, np.array(colors), size, val_episodes)
    complete_folder(out, header | {"dropped_seeds": dropped})
    return len(kept), dropped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the dataset")
    parser.add_argument("--episodes", type=int, default=200, help="number of demonstrations to replay, up to 819")
    parser.add_argument("--val-episodes", type=int, default=10, help="the last ones are the split val")
    parser.add_argument("--size", type=int, default=96, help="height and width of the frames in px")
    parser.add_argument(
        "--hold", type=int, default=16, help="steps after success, in which the robot goes away from the block"
    )
    made = make_dataset(**vars(parser.parse_args()))
    print("already complete" if made is None else f"{made[0]} episodes; dropped (replay does not succeed): {made[1]}")


if __name__ == "__main__":
    main()
