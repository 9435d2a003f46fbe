"""A run of a tiny world model on robot episodes, as a finished training leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from robot_episodes import CAMERAS, Rows, write_episodes
from tiny_generator import WIDER, generator_config

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.data.robots.robot import Robot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.models.spec import ModelSpec

LOW, HIGH = [-1.0] * 6 + [0.2], [3.0] * 6 + [0.7]
CAMERA = next(iter(CAMERAS))


def vary(episode: int, found: Rows) -> None:
    """Makes the actions of all windows different."""
    shifts = 2 * np.cos(3.0 * np.arange(len(found["action"]))[:, None] + 10 * episode + np.arange(7))
    found["action"] = (np.array(found["action"]) + shifts).tolist()


def robots(path: Path, **values: Any) -> RobotDataset.Config:
    """Windows of 4 steps with the joints and the flipped gripper as actions, and the state as row 0."""
    robot = Robot.Config(
        embodiment="arm",
        domain_id=24,
        cameras=[CAMERA],
        actions=["joints action[0:6]", "flipped_gripper action[6]"],
        state=["joints observation.state", "flipped_gripper action[6]"],
        normalization="quantile_rot",
        statistics=str(path.parent / "statistics.json"),
    )
    modes = {"wam": 1.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0}
    settings = {"split": "train", "val_fraction": 0.4, "history": 2, "modes": modes, **values}
    return RobotDataset.Config(path=str(path), robot=robot, steps=4, resolution="96x96", **settings)


def write_robot_run(root: Path, dataset: Any = None) -> Path:
    """Writes the episodes `robots` and `other`, and a run with one checkpoint of random weights; returns its folder."""
    for name in ("robots", "other"):
        write_episodes(root / name, cameras={CAMERA: (96, 64)}, change=vary)
    (root / "statistics.json").write_text(json.dumps({"q01": LOW, "q99": HIGH}))
    config = generator_config(action_gen=True, **WIDER)
    data = RobotLoader.Config(dataset=dataset or robots(root / "robots"), max_samples_per_batch=4)
    tree = {
        "job": {"project": "demo", "group": "", "name": "robot"},
        "model": to_dict(ModelSpec(name="cosmos3", config=config)),
        "objective": to_dict(ActionFlow.Config(shift=3.0, loss_scale=10.0)),
        "trainer": {"seed": 0},
        "checkpoint": to_dict(Checkpointer.Config(init="scratch")),
        "dataloader_train": to_dict(data),
        "dataloader_val": None,
    }
    folder = root / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(tree))
    weights = Cosmos3Generator(config, seed=3).network.state_dict()
    stream = torch.Generator().manual_seed(5)
    for name, tensor in weights.items():  # so that the actions matter
        heads = name.split(".")[0] in ("action2llm", "llm2action")
        tensor.normal_(0, 0.15 if heads else tensor.shape[-1] ** -0.5, generator=stream)
        if tensor.ndim == 1:
            tensor.add_(0.7)
    model = {prefix + name: tensor for prefix in ("net.", "net_ema.") for name, tensor in weights.items()}
    Checkpointer.Config(init="scratch").build(folder=folder / "checkpoints").save(4, {"model": model})
    return folder
