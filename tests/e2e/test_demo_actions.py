"""The demo of a robot policy: its scores from videos and rows, and (slow) the complete script."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from worldsmith.data.video_writer import write_video

ROOT = Path(__file__).parents[2]
SCORES = ROOT / "examples/pusht/scores.py"
LAST_LINE = re.compile(
    r"coverage \d\.\d{3} \(random \d\.\d{3}, planner 0\.961\), inverse dynamics MSE \S+ \(linear floor \S+\), "
    r"forward dynamics true/shuffled \d+\.\d\d"
)


scores = SimpleNamespace(**runpy.run_path(str(SCORES)))


def video(file: Path, *corners: tuple[int, int]) -> None:
    """Writes a video of 64×64 px in which the upper left corner (x, y) of a block of 12×8 px is at `corners`."""
    frames = np.full((len(corners), 64, 64, 3), 255, np.uint8)
    for frame, (x, y) in zip(frames, corners, strict=True):
        frame[40:52, 20:44] = (144, 238, 144)  # the goal
        frame[y : y + 8, x : x + 12] = (119, 136, 153)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_video(file, frames, 10)


def test_errors_of_the_block_are_distances_in_px_of_the_scene(tmp_path: Path) -> None:
    video(tmp_path / "real/a.mp4", (10, 10), (20, 10))
    video(tmp_path / "trained/forward_dynamics/a.mp4", (10, 10), (20, 13))
    predicted, stays = scores.block_errors(tmp_path)
    assert predicted == pytest.approx([3 * 8], abs=3)
    assert stays == pytest.approx([10 * 8], abs=3)


def test_a_video_without_block_is_no_good_prediction(tmp_path: Path) -> None:
    video(tmp_path / "real/a.mp4", (10, 10), (20, 10))
    video(tmp_path / "trained/forward_dynamics/a.mp4", (60, 63), (64, 64))
    predicted, _ = scores.block_errors(tmp_path)
    assert not (predicted <= scores.CLOSE).any()


def test_the_floor_is_that_of_a_linear_prediction_from_two_positions(tmp_path: Path) -> None:
    """Actions are exactly linear in two positions of an episode, up to noise of a known size."""
    rng, file = np.random.default_rng(0), tmp_path / "data/chunk-000/file-000.parquet"
    states, noise = rng.uniform(0, 512, (4000, 2)), rng.normal(0, 10, (4000, 2))
    actions = states + 2 * (np.roll(states, -1, axis=0) - states) + noise
    file.parent.mkdir(parents=True)
    columns = {"observation.state": list(states), "action": list(actions), "episode_index": np.arange(4000) // 100}
    parquet.write_table(pa.table(columns), file)
    assert scores.linear_floor(tmp_path) == pytest.approx((10 / 256) ** 2, rel=0.05)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quick_demo_ends_with_its_line_and_shows_episodes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data"))
    environment = {**os.environ, "DEMO": "quick", "OMP_NUM_THREADS": "1"}
    script = tmp_path / "examples/demo_actions.sh"
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert LAST_LINE.fullmatch(done.stdout.splitlines()[-1])
    page = (tmp_path / "outputs/train/worldsmith/demo/pusht_demo_quick/report.html").read_text()
    assert "rollout, seed 20000" in page
