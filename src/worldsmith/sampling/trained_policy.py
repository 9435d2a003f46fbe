"""`TrainedRobot`: maps frames, states, actions and texts of a robot to requests to its model, and rows to actions.

`TrainedPolicy` is the model as a robot policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from av.video.frame import VideoFrame

from worldsmith.config.errors import UserError
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_sample import RobotActions
from worldsmith.data.robots.normalizer import build_normalizer
from worldsmith.data.robots.robot import POLICY_FILE, Robot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_maker import arrange, compose_cameras
from worldsmith.data.robots.robot_prompt import robot_prompt
from worldsmith.models.video_model import VideoModel
from worldsmith.sampling.generate_videos import generate_actions
from worldsmith.sampling.policy import ARRANGED, Observation, PolicySpec, RequestError, RobotPolicy
from worldsmith.sampling.requests import GenerationRequest, read_request

PREDICTING = ("wam", "policy")
"""Modes of training in which the actions after the first frame are predicted."""


class TrainedRobot:
    """Robot on whose episodes a model was trained: images, texts and rows are mapped as in training, by the same code.

    No history is given, as at the start of an episode in training.

    Args:
        data: Content of the run's `POLICY_FILE`.
        grid: Frames and pixels per latent of the model.
    """

    def __init__(self, data: Mapping[str, Any], grid: LatentGrid) -> None:
        self.config: RobotDataset.Config = from_dict(data["dataset"], RobotDataset.Config)
        robot = self.config.robot
        self.robot: Robot = robot.build(widths=data["columns"])
        self.fps: float = data["fps"]
        self.views: list[list[str]] = data["views"]
        self.normalizer = build_normalizer(
            robot.normalization, data["statistics"], self.robot.width, where=POLICY_FILE, clamp=robot.clamp
        )
        self.cameras = short_names([camera for row in self.views for camera in row])
        self.camera_sizes = {name: tuple(data["sizes"][camera][::-1]) for name, camera in self.cameras.items()}
        """Camera → (height, width) in px."""
        self.columns = short_names(sorted({group.column for group in self.robot.state}))
        self.state_widths = {name: data["columns"][column] for name, column in self.columns.items()}
        """Part of the state → its number of values."""
        first = self.views[0][0]
        self.sizes = arrange(data["sizes"][first], [len(row) for row in self.views], self.config.resolution)
        self.latent_shape = grid.latent_shape(self.config.num_video_frames, *self.sizes.content[::-1])
        self.pixels = grid.pixels

    def image(self, frames: Mapping[str, np.ndarray]) -> torch.Tensor:
        """Returns the frames of all cameras as one video with padding, uint8 [3, T, H, W].

        Args:
            frames: Camera → uint8 [T, H, W, 3] in RGB, or `ARRANGED` → frames of all cameras.
        """
        images, views, sizes = frames, [[ARRANGED]], self.sizes
        if ARRANGED in frames:
            sizes = replace(sizes, cells=[[frames[ARRANGED].shape[2:0:-1]]])
        else:
            images, views = {camera: frames[name] for name, camera in self.cameras.items()}, self.views
        return compose_cameras(
            lambda camera: (
                VideoFrame.from_ndarray(np.ascontiguousarray(one), format="rgb24") for one in images[camera]
            ),
            views,
            sizes,
            len(next(iter(images.values()))),
            dict.fromkeys(images, 0),
        )

    def num_given(self, mode: str) -> int:
        """Returns the number of frames that are given in a mode of training."""
        return self.config.num_video_frames if mode == "inverse_dynamics" else 1

    def request(
        self,
        instruction: str,
        frames: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        seed: int,
        *,
        mode: str = "wam",
        actions: np.ndarray | None = None,
    ) -> GenerationRequest:
        """Returns the request to the model.

        The text states that no row is idle if the actions are predicted: their number is not known, and 0 is that of
        the training windows in which the robot moves all the time. It is empty for an empty instruction, as that of
        dropped captions.

        Args:
            instruction: The task as text.
            frames: Frames as for `image`, of which `num_given` are used.
            state: Name of each part of the state → values [width] at the first frame.
            seed: Seed of the noise.
            mode: Mode of training.
            actions: Actions [steps, channels] in the units of the data, for forward dynamics.
        """
        config, robot = self.config, self.robot
        rows = np.zeros((config.steps, robot.width), np.float32)
        if actions is not None:
            rows = np.where(robot.flipped, 1 - actions, actions).astype(np.float32)
        if robot.state:
            values = {column: state[name][None] for name, column in self.columns.items()}
            rows = np.concatenate((robot.state_rows(values), rows))
        given = len(rows) - config.steps
        idle = None
        if robot.has_idle_rows and mode != "inverse_dynamics":
            idle = (0 if actions is None else int(robot.count_idle(rows, self.fps)), len(rows))
        numbers = torch.from_numpy(rows)
        return GenerationRequest(
            prompt=robot_prompt(instruction, config, idle=idle, fps=self.fps, canvas=self.sizes.canvas),
            height=self.latent_shape[1] * self.pixels,
            width=self.latent_shape[2] * self.pixels,
            num_frames=config.num_video_frames,
            fps=self.fps,
            seed=seed,
            condition=self.image({name: video[: self.num_given(mode)] for name, video in frames.items()}),
            condition_frames=self.latent_shape[0] if mode == "inverse_dynamics" else 1,
            structured_metadata=False,
            actions=RobotActions(
                rows=self.normalizer.normalize(numbers),
                clean_rows=given if actions is None else len(rows),
                offset=1 - given,
                domain=config.robot.domain,
                fps=self.fps,
            ),
        )

    def actions(self, rows: torch.Tensor) -> np.ndarray:
        """Returns the actions [steps, channels] of generated rows, in the units of the robot.

        The gripper is that of the data again where training has flipped it.
        """
        values = self.normalizer.denormalize(rows.cpu().float()[bool(self.robot.state) :]).numpy()
        return np.where(self.robot.flipped, 1 - values, values)


class TrainedPolicy(TrainedRobot, RobotPolicy):
    """Robot policy that predicts video and actions together, and returns the actions.

    Observations without a seed get the seeds 0, 1, 2, ….

    Args:
        data: Content of the run's `POLICY_FILE`.
        grid: Frames and pixels per latent of the model.
        about: Further facts about the policy, for its `PolicySpec`.
        settings: Fields of `Sampling`, such as steps and guidance.
    """

    model: VideoModel
    """The model; to be set before the first prediction. Everything else needs no weights."""

    def __init__(self, data: Mapping[str, Any], grid: LatentGrid, about: Mapping[str, Any], **settings: Any) -> None:
        """Reads the settings. Raises UserError if the run was not trained to predict actions."""
        super().__init__(data, grid)
        self.settings, self.seeds = settings, itertools.count()
        if not any(self.config.modes.get(mode) for mode in PREDICTING):
            modes = ", ".join(sorted(self.config.modes))
            raise UserError(f"the model was trained in the modes {modes}: a policy needs {' or '.join(PREDICTING)}")
        self.spec = PolicySpec(
            cameras=self.camera_sizes,
            state=self.state_widths,
            action_width=self.robot.width,
            chunk_length=self.config.steps,
            domain=self.config.robot.embodiment,
            about={**about, **settings, "actions": self.config.robot.actions, "fps": self.fps},
            arranged=self.sizes.composed[::-1],
        )

    def observe(self, one: Observation, seed: int) -> GenerationRequest:
        """Returns the request that predicts video and actions from an observation."""
        return self.request(one.instruction, {name: image[None] for name, image in one.images.items()}, one.state, seed)

    def predict(self, observations: Sequence[Observation]) -> list[np.ndarray]:
        seeds = [next(self.seeds) if one.seed is None else one.seed for one in observations]
        requests = [self.observe(one, seed) for one, seed in zip(observations, seeds)]
        sampler = self.model.sampler(self.model.defaults.sampling(**self.settings))
        try:
            for request in requests:
                read_request(sampler, request)
        except ValueError as error:  # such as an instruction with too many tokens
            raise RequestError(str(error)) from None
        found = generate_actions(self.model, requests, **self.settings)
        return [self.actions(one.rows) for one in found]


def short_names(columns: Sequence[str]) -> dict[str, str]:
    """Returns name → column: the name is the last part of the column, such as "image" for "observation.image".

    If two columns have the same last part, the names are the columns.
    """
    names = [column.rpartition(".")[2] for column in columns]
    return dict(zip(names if len({*names}) == len(names) else columns, columns))


def select_robot(robots: Mapping[str, Any], name: str | None, setting: str) -> str:
    """Returns the name of the robot dataset to use: `name`, or that of the only one.

    Raises UserError, which begins with `setting`, if no dataset or several ones are possible.
    """
    name = name or (next(iter(robots)) if len(robots) == 1 else "")
    if name not in robots:
        raise UserError(f"{setting}: expected {' or '.join(robots) or 'no name'}, found '{name}'")
    return name
