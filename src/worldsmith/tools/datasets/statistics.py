"""`worldsmith dataset statistics FOLDER`: statistics of the actions of robot episodes, for their normalization."""

from __future__ import annotations

import json
from dataclasses import field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from worldsmith.actions.action import Action, Result
from worldsmith.config.errors import UserError
from worldsmith.data.robots.normalizer import NAMES, compute_statistics
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.files.atomic import write_text


class ComputeStatistics(Action):
    """Computes mean, standard deviation, minimum, maximum, 1st and 99th percentile of each channel of the action rows.

    --dataset.robot selects the columns: LiberoRobot, DroidJoints, DroidPoses, BridgeRobot, PushTRobot, or Robot with
    --dataset.robot.actions. The file is the value of `statistics` in the config of the robot, with a normalization
    such as quantile_rot. Use the split for training, so that validation data have no influence.
    """

    places: ClassVar[tuple[str, ...]] = ("folder",)

    class Config(Action.Config):
        folder: str
        """Folder of the LeRobot dataset."""
        dataset: RobotDataset.Config = field(default_factory=RobotDataset.Config)
        """Settings of the dataset, as in dataloader_train; its normalization is ignored."""
        out: str | None = None
        """File to write; null: only print."""

    config: Config

    def run(self) -> Result:
        """Computes and writes the statistics. Raises DataError or UserError if the dataset cannot be used."""
        config = self.config
        robot = replace(config.dataset.robot, normalization="none", statistics="", clamp=False)
        robot.check()
        dataset = replace(config.dataset, path=config.folder, robot=robot).build()
        if not dataset.episodes:
            raise UserError(f"{dataset.name} has no episode that can be used: {dataset.limits}")
        rows = np.concatenate([dataset.action_rows(episode) for episode in dataset.episodes])
        metadata = {
            "embodiment_type": robot.embodiment,
            **robot.convention(dataset.fps),
            "action_dim": dataset.robot.width,
            "channels": dataset.robot.kinds,
            "dataset_root": config.folder,
            "split": config.dataset.split,
            "episodes": len(dataset.episodes),
            "num_samples_stats": len(rows),
        }
        content = compute_statistics(rows, [kind == "rotation" for kind in dataset.robot.kinds], metadata)
        if config.out is not None:
            write_text(Path(config.out), json.dumps(content, indent=2) + "\n")
        lines = [f"{len(rows)} actions of {len(dataset.episodes)} episodes; {len(dataset.rejections)} episodes skipped"]
        lines += [f"  {item.key}: {item.reason}: {item.detail}" for item in dataset.rejections[:3]]
        lines.append(f"{'channel':<12}" + "".join(f"{name:>11}" for name in NAMES))
        for index, kind in enumerate(dataset.robot.kinds):
            values = "".join(f"{content['global_raw'][name][index]:>11.5g}" for name in NAMES)
            lines.append(f"{index:<3}{kind:<9}{values}")
        lines += [f"warning: {flag}: {flag.named}" for flag in dataset.flags() if flag.name in ("constant", "outlier")]
        return Result([*lines, *([f"written: {config.out}"] if config.out else [])], content)
