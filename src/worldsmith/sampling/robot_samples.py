"""Samples with robot actions: reads their settings and files, and reports all mistakes of a sample at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.robots.robot import DOMAINS
from worldsmith.data.video_decoder import examine
from worldsmith.models.video_model import ROBOT_MODES, GenerationDefaults
from worldsmith.sampling.policy import ARRANGED
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.sample_args import Chooser, SampleArgs, decide_first, read_text, with_outputs
from worldsmith.sampling.sample_files import Layer, SampleEntry, read_condition
from worldsmith.sampling.trained_policy import PREDICTING, TrainedRobot, select_robot

GUIDANCE = 1.0
"""Default guidance scale: no guidance, as for a policy."""
SAME_RATE = 0.01
"""Max relative difference of the frame rates of a clip and of the robot."""
UNUSED = (
    *("condition_frame_indexes_vision", "condition_video_keep", "height", "width", "aspect_ratio", "strength"),
    *("negative_metadata_mode", "negative_prompt_keep_metadata", "structured_metadata", "image_save_quality"),
)
"""Settings without effect on a sample with robot actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSampleArgs(SampleArgs):
    """Final settings of one sample with robot actions, as stored in `sample_args.json`, without the model."""

    camera_paths: dict[str, str]
    state: dict[str, list[float]]
    actions: list[list[float]] | None
    robot_dataset: str
    robot: TrainedRobot | None
    """Mapping to the request; its settings are stored, such as `domain_name`."""

    @property
    def media(self) -> list[str]:
        return [*self.camera_paths.values()] if self.vision_path is None else [self.vision_path]

    def record(self) -> dict[str, Any]:
        assert self.robot is not None
        found = asdict(replace(self, robot=None)) | settings_of(self.robot)
        del found["robot"]
        return found

    def request(self, grid: LatentGrid) -> GenerationRequest:
        assert self.robot is not None
        files = self.camera_paths if self.vision_path is None else {ARRANGED: self.vision_path}
        request = self.robot.request(
            self.prompt,
            {name: read_condition(path, self.num_frames).permute(1, 2, 3, 0).numpy() for name, path in files.items()},
            {name: np.array(values, np.float32) for name, values in self.state.items()},
            self.seed,
            mode=self.model_mode,
            actions=None if self.actions is None else np.array(self.actions, np.float32),
        )
        request = replace(request, negative_prompt=self.negative_prompt)
        request.check(grid)
        return request

    def describe_actions(self, rows: Tensor) -> dict[str, Any]:
        """Returns the content of `actions.json`: generated or given rows [rows, channels] in the units of the robot."""
        assert self.robot is not None
        found, robot = self.robot.actions(rows).tolist(), self.robot.robot
        return {"actions": found, "channels": robot.kinds, "groups": robot.config.actions, "fps": self.fps}


def decide_robot(
    entry: SampleEntry,
    flags: Layer,
    defaults: GenerationDefaults,
    grid: LatentGrid,
    defaults_source: str,
    limits: tuple[int, int] | None,
    robots: Mapping[str, Any],
) -> list[SampleArgs]:
    """Returns the final settings of the samples with robot actions that one entry of a sample file describes.

    Args:
        entry: The entry.
        flags: Settings from the command line.
        defaults: Default generation settings of the model.
        grid: Number of frames and pixels per latent of the model.
        defaults_source: Name of the source of `defaults`.
        limits: The model's max number of channels of an action, and its number of embodiment domains; None: it has no
            action heads.
        robots: Name of the robot dataset → content of its `POLICY_FILE`; empty: the model records no robot.

    Raises:
        UserError: If settings are wrong or missing; it lists all mistakes of the entry.
    """
    chooser, sample = Chooser([flags, *entry.layers]), entry.sample
    try:
        if limits is None:
            raise ValueError("this model has no action heads: omit model_mode")
        vision, rows = chooser.path("vision_path"), read_actions(entry, chooser)
        paths = {name: str(entry.layers[0].folder / path) for name, path in (sample.camera_paths or {}).items()}
        files = paths | ({} if vision is None else {ARRANGED: vision})
        name = select_robot(robots, chooser.pick("robot_dataset"), "robot_dataset") if robots else ""
        robot = TrainedRobot(robots[name] if robots else released_robot(chooser, defaults, vision, rows), grid)
        problems = [
            *find_mistakes(robot, chooser, rows, sample.state or {}, limits),
            *check_frames(robot, chooser, files),
        ]
        if robot.config.steps % grid.step:
            problems.append(f"action_chunk_size: expected a multiple of {grid.step}, found {robot.config.steps}")
        if problems:
            raise ValueError("\n".join(problems))
        height, width = (side * grid.pixels for side in robot.latent_shape[1:])
        size = {"height": height, "width": width, "num_frames": robot.config.num_video_frames, "fps": robot.fps}
        defaults = replace(defaults, **size, guidance=GUIDANCE, structured_metadata=False)  # type: ignore[arg-type]
        plain = decide_first(entry, chooser, defaults, grid, defaults_source, ROBOT_MODES)
    except (ValueError, UserError) as error:
        lines = str(error).splitlines()
        raise UserError("\n".join(f"{entry.layers[0].source}: {line}" for line in lines)) from None
    if chooser.find("guidance") is None:
        chooser.sources["guidance"] = plain.model_mode
    values = {one.name: getattr(plain, one.name) for one in fields(SampleArgs)} | size
    given: dict[str, Any] = {"camera_paths": paths, "state": sample.state or {}, "actions": rows}
    found = RobotSampleArgs(**values, **given, robot_dataset=name, robot=robot)
    return with_outputs(found, chooser)


def read_actions(entry: SampleEntry, chooser: Chooser) -> list[list[float]] | None:
    """Returns the given robot actions of a sample, which are not checked; None if it has none.

    Raises ValueError if the file `action_path` cannot be read, or `actions` are given, too.
    """
    path = chooser.path("action_path")
    if path is None:
        return entry.sample.actions
    if entry.sample.actions is not None:
        raise ValueError("actions and action_path: each sets the robot actions; omit one of them")
    try:
        found = json.loads(read_text(Path(path), "action_path"))
        rows: list[list[float]] = np.array(found["actions"] if isinstance(found, dict) else found, np.float64).tolist()
        if np.ndim(rows) != 2:
            raise ValueError(f"{np.ndim(rows)} dimensions")
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"action_path: {path}: expected a list of rows of numbers, found an error: {error}") from None
    return rows


def released_robot(
    chooser: Chooser, defaults: GenerationDefaults, vision: str | None, rows: list[list[float]] | None
) -> dict[str, Any]:
    """Returns data as in a `POLICY_FILE` for a model without one, from the settings of a sample, without normalization.

    The defaults are those of `cosmos_framework` and diffusers.

    Args:
        chooser: Selects the value of each setting.
        defaults: Default generation settings of the model.
        vision: Frames of the sample.
        rows: Given robot actions.

    Raises:
        ValueError: If a setting is wrong or missing, or the frames cannot be read.
    """
    domain = chooser.pick("domain_name")
    if domain not in DOMAINS or vision is None:
        needed = f"a vision_path and a domain_name ({', '.join(DOMAINS)})"
        raise ValueError(f"the model does not record the robot of its training: set {needed}")
    channels = chooser.pick("raw_action_dim", (DOMAINS[domain][1], domain), (len(rows[0]) if rows else None, "actions"))
    fps = chooser.pick("fps", (defaults.fps, "default"))
    if channels is None or fps is None:
        missing = "fps" if fps is None else f"raw_action_dim (actions of {domain} have no fixed number of channels)"
        raise ValueError(f"the model does not record the robot of its training: set {missing}")
    height, width = read_condition(vision, 1).shape[2:]
    view = chooser.pick("view_point", ("ego_view", "default"))
    return {
        "dataset": {
            "robot": {"embodiment": domain, "cameras": [ARRANGED], "viewpoint": view},
            "resolution": chooser.pick("resolution", ("480", "default")),
            "steps": chooser.pick("action_chunk_size", (16, "default")),
            "modes": dict.fromkeys(ROBOT_MODES, 1.0),
        },
        "fps": fps,
        "columns": {"action": channels},
        "views": [[ARRANGED]],
        "sizes": {ARRANGED: [width, height]},
        "statistics": {},
    }


def settings_of(robot: TrainedRobot) -> dict[str, Any]:
    """Returns the settings of a sample that the robot determines, by name."""
    config = robot.config
    return {
        "domain_name": config.robot.embodiment,
        "raw_action_dim": robot.robot.width,
        "view_point": config.robot.viewpoint,
        "resolution": config.resolution,
        "action_chunk_size": config.steps,
    }


def find_mistakes(
    robot: TrainedRobot,
    chooser: Chooser,
    rows: list[list[float]] | None,
    state: Mapping[str, list[float]],
    limits: tuple[int, int],
) -> Iterator[str]:
    """Yields mistakes in the settings, the given actions and the state of a sample; arguments as of `decide_robot`."""
    config, mode, channels = robot.config, chooser.pick("model_mode"), robot.robot.width
    for name, value in (settings_of(robot) | {"num_frames": config.num_video_frames, "fps": robot.fps}).items():
        if (found := chooser.pick(name, (value, "the robot"))) != value:
            yield f"{name}: expected {value}, as for the robot of the model, found {found}; omit it"
    if unused := [name for name in UNUSED if chooser.find(name) is not None]:
        yield f"{', '.join(unused)}: no effect on a sample with robot actions; omit it"
    if channels > limits[0] or config.robot.domain >= limits[1]:
        found = f"{channels} channels and domain {config.robot.domain}"
        yield f"actions have {found}: the model has action heads for {limits[0]} channels and {limits[1]} domains"
    trained = [name for name, weight in config.modes.items() if weight]
    if not {*trained} & ({*PREDICTING} if mode in PREDICTING else {mode}):
        yield f"model_mode {mode}: the model was trained for {', '.join(trained)} only"
    expected = f"{config.steps} rows of {channels} finite numbers"
    if mode != "forward_dynamics":
        if rows is not None:
            yield f"{mode} generates the actions: omit actions and action_path"
    elif rows is None:
        yield f"forward_dynamics needs robot actions: set actions or action_path, with {expected}"
    else:
        widths = sorted({len(row) for row in rows})
        if (len(rows), widths) != (config.steps, [channels]) or not np.isfinite(rows).all():
            yield f"actions: expected {expected}, found {len(rows)} rows of {' or '.join(map(str, widths))}"
    given = {name: len(values) for name, values in state.items()}
    if given != robot.state_widths:
        yield f"state: expected the parts {robot.state_widths}, with their numbers of values, found {given}"


def check_frames(robot: TrainedRobot, chooser: Chooser, files: Mapping[str, str]) -> Iterator[str]:
    """Yields mistakes in the images and clips of a sample: camera → path, or `ARRANGED` → path."""
    if {*files} not in ({ARRANGED}, {*robot.camera_sizes}):
        yield f"expected a vision_path, or camera_paths of: {', '.join(robot.camera_sizes)}"
        return
    needed = robot.num_given(chooser.pick("model_mode"))
    arranged = robot.sizes.composed[::-1], robot.sizes.content[::-1]
    for name, path in files.items():
        try:
            _, frames, height, width = read_condition(path, needed).shape
        except ValueError as error:
            yield str(error)
            continue
        expected = arranged if name == ARRANGED else (robot.camera_sizes[name],)
        if (height, width) not in expected:
            options = " or ".join(f"{width}x{height}" for height, width in dict.fromkeys(expected))
            yield f"{path}: expected images of {options}, as in training, found {width}x{height}"
        if frames < needed:
            yield f"{path}: expected {needed} frames, found {frames}"
        elif needed > 1 and abs((fps := examine(path)[1].fps) / robot.fps - 1) > SAME_RATE:
            yield f"{path}: expected {robot.fps:g} fps, found {fps:g}; convert the clip"
