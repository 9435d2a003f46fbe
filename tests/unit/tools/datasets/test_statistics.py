"""`worldsmith dataset statistics`: the numbers of numpy over all usable episodes, in the format that training reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robot_episodes import Rows, write_episodes

from worldsmith.cli.main import main
from worldsmith.data.robots.robot import LiberoRobot
from worldsmith.data.robots.robot_dataset import RobotDataset

WORDS = ["--dataset.robot", "LiberoRobot", "--dataset.steps", "4"]


def damage(episode: int, found: Rows) -> None:
    if episode == 1:
        found["action"][2] = [float("nan")] * 7


def test_statistics_are_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = write_episodes(tmp_path / "data", change=damage), tmp_path / "stats.json"
    assert main(["dataset", "statistics", str(folder), *WORDS, "--out", str(file)]) == 0
    said = capsys.readouterr().out
    assert "25 actions of 2 episodes; 1 episodes skipped" in said
    assert "episode_000001: bad_values: row 14: action contains [nan" in said
    content = json.loads(file.read_text())
    assert content["metadata"]["action_dim"] == 10
    robot: dict[str, Any] = {"normalization": "quantile_rot", "statistics": str(file)}
    config = RobotDataset.Config(path=str(folder), robot=LiberoRobot.Config(**robot), steps=4)
    dataset = config.build()
    rows = np.concatenate([dataset.action_rows(episode) for episode in dataset.episodes])
    assert np.allclose(content["global_raw"]["mean"], rows.mean(0), atol=1e-6)
    assert np.allclose(content["global_raw"]["q99"], np.percentile(rows, 99, axis=0), atol=1e-6)
    assert content["global"]["q01"][3:9] == [-1.0] * 6
    assert dataset.normalizer is not None
    normalized = dataset.normalizer.normalize(torch.from_numpy(rows))
    inside = (normalized.abs() <= 1 + 1e-4).float().mean(0)
    assert inside[[0, 1, 9]].min() >= 0.96


def test_only_the_split_for_training_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_episodes(tmp_path, lengths=(12, 9, 15, 20))
    words = [*WORDS, "--dataset.split", "train", "--dataset.val-fraction", "0.25", "--json"]
    assert main(["dataset", "statistics", str(folder), *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["metadata"]["episodes"] == 3
    assert facts["metadata"]["split"] == "train"


def test_a_dataset_without_usable_episodes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_episodes(tmp_path, lengths=(3, 4))
    assert main(["dataset", "statistics", str(folder), *WORDS]) == 2
    assert "no episode that can be used" in capsys.readouterr().err
