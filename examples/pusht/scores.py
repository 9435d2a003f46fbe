"""The scores of `make demo-actions`: `python examples/pusht/scores.py RUN RANDOM DATA`.

RUN is the run folder with rollout/ and held_out/, RANDOM the folder of a rollout with random actions, DATA the
demonstrations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import av
import numpy as np
from pyarrow import parquet

PLANNER = 0.961
"""Mean best coverage of the planner of the demonstrations from the default 50 starts of `worldsmith rollout`."""
BLOCK = (119, 136, 153)
"""Color of the block."""
NEAR = 40
"""Max distance of the color of a pixel of the block from `BLOCK`."""
CLOSE = 12.0
"""Max distance in px of the scene of a block that is predicted well."""
SIDE = 512
"""Side of the scene in px of its positions."""


def linear_floor(data: Path) -> float:
    """Returns the mean squared error of the best linear prediction of actions from robot positions, in [-1, 1]."""
    table = parquet.read_table(data / "data/chunk-000/file-000.parquet")
    states, actions = (np.array(table[name].to_pylist()) for name in ("observation.state", "action"))
    inside = np.array(table["episode_index"])[1:] == np.array(table["episode_index"])[:-1]
    known = np.concatenate([states[:-1], states[1:], np.ones((len(states) - 1, 1))], 1)[inside]
    wanted = actions[:-1][inside] / (SIDE / 2)
    found = known @ np.linalg.lstsq(known, wanted, rcond=None)[0]
    return float(((found - wanted) ** 2).mean())


def block_positions(video: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the center (x, y) of the block in the first and the last frame, in px of the scene; NaN if invisible."""
    with av.open(str(video)) as opened:
        frames = [frame.to_ndarray(format="rgb24").astype(float) for frame in opened.decode(video=0)]
    found = [np.argwhere(np.linalg.norm(frame - BLOCK, axis=-1) < NEAR)[:, ::-1] for frame in (frames[0], frames[-1])]
    first, last = (points.mean(0) * SIDE / len(frames[0]) if len(points) else np.full(2, np.nan) for points in found)
    return first, last


def block_errors(held_out: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distances of predicted and real block at the end of each window, and those of a block that stays."""
    predicted, stays = [], []
    for video in sorted((held_out / "trained/forward_dynamics").glob("*.mp4")):
        first, last = block_positions(held_out / "real" / video.name)
        predicted.append(np.linalg.norm(block_positions(video)[1] - last))
        stays.append(np.linalg.norm(first - last))
    return np.array(predicted), np.array(stays)


def main(run: Path, random: Path, data: Path) -> None:
    trained, baseline = (json.loads((folder / "rollout.json").read_text()) for folder in (run / "rollout", random))
    metrics = json.loads((run / "held_out/evaluation.json").read_text())["figures"]
    mean = {name: found["trained"]["mean"] for name, found in metrics.items()}
    error = (mean["action_mse_0"] + mean["action_mse_1"]) / 2 / (SIDE / 2) ** 2
    predicted, stays = block_errors(run / "held_out")
    moved = stays > CLOSE
    print(
        f"predicted block within {CLOSE:.0f} px of the real one in {np.mean(predicted <= CLOSE):.0%} of {len(stays)} "
        f"windows, and in {np.mean(predicted[moved] <= CLOSE) if moved.any() else 0:.0%} of the {moved.sum()} in which "
        "it moves farther than that"
    )
    print(
        f"coverage {trained['mean_score']:.3f} (random {baseline['mean_score']:.3f}, planner {PLANNER}), "
        f"inverse dynamics MSE {error:.2g} (linear floor {linear_floor(data):.2g}), "
        f"forward dynamics true/shuffled {mean['shuffled_to_true']:.2f}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
