"""Samples with robot actions: files and settings become the request of the robot, and all mistakes are reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.families.cosmos3.model import Cosmos3Defaults
from worldsmith.sampling.robot_samples import RobotSampleArgs, decide_robot
from worldsmith.sampling.sample_args import decide
from worldsmith.sampling.sample_files import Layer, read_files
from worldsmith.sampling.sample_settings import SampleSettings
from worldsmith.sampling.trained_policy import TrainedRobot
from worldsmith.sampling.write_media import write_mp4

GRID, LIMITS = LatentGrid(4, 16, 2), (12, 9)
DEFAULTS = Cosmos3Defaults(shift=3.0, steps=7, guidance=6.0)
TOP, LEFT, RIGHT = "cameras.top", "cameras.left", "cameras.right"
SIZES = {TOP: (96, 64), LEFT: (32, 32), RIGHT: (40, 20)}
ROBOT = {
    "dataset": {
        "robot": {
            "embodiment": "arm",
            "domain_id": 5,
            "cameras": [TOP, f"{LEFT} | {RIGHT}"],
            "actions": ["joints action[0:2]", "flipped_gripper action[2]"],
            "state": ["joints observation.joints", "gripper observation.gripper"],
            "normalization": "minmax",
            "statistics": "s.json",
        },
        "resolution": "80x64",
        "steps": 4,
        "modes": {"wam": 1.0, "forward_dynamics": 1.0},
        "prompt": "json",
    },
    "fps": 10.0,
    "columns": {"action": 3, "observation.joints": 2, "observation.gripper": 1},
    "views": [[TOP], [LEFT, RIGHT]],
    "sizes": {camera: [*size] for camera, size in SIZES.items()},
    "statistics": {"min": [-1.0, 0.0, 0.0], "max": [1.0, 4.0, 1.0]},
}
STATE = {"joints": [0.5, 1.0], "gripper": [0.25]}
ACTIONS = [[0.1 * n, 1.0 + n, 0.25] for n in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of the cameras, of all cameras, and clips."""
    noise = np.random.default_rng(0)
    for camera, (width, height) in SIZES.items():
        image = noise.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(image).save(tmp_path / f"{camera.rpartition('.')[2]}.png")
    for name, count, fps in (("clip", 5, 10), ("short", 3, 10), ("fast", 5, 30)):
        write_mp4(tmp_path / f"{name}.mp4", torch.zeros(3, count, 96, 96, dtype=torch.uint8), fps)
    (tmp_path / "row.json").write_text("[1, 2]")
    return tmp_path


def found(folder: Path, *, robots: Any = None, limits: Any = LIMITS, **sample: Any) -> RobotSampleArgs:
    """Settings of a sample that has a state and the images of the cameras, and `sample`."""
    cameras = {name: f"{name}.png" for name in ("top", "left", "right")}
    values = {"prompt": "push", "model_mode": "wam", "state": STATE, "camera_paths": cameras} | sample
    values = {name: value for name, value in values.items() if value is not None}
    (folder / "sample.json").write_text(json.dumps(values))
    (entry,) = read_files([str(folder / "sample.json")])
    robots = {"": ROBOT} if robots is None else robots
    flags = Layer("flag", SampleSettings(), Path())
    (args,) = decide_robot(entry, flags, DEFAULTS, GRID, "as trained", limits, robots)
    assert isinstance(args, RobotSampleArgs)
    return args


def mistakes(folder: Path, **sample: Any) -> list[str]:
    with pytest.raises(UserError) as error:
        found(folder, **sample)
    where = f"{folder / 'sample.json'}: "
    lines = str(error.value).splitlines()
    assert all(line.startswith(where) for line in lines)
    return [line.removeprefix(where) for line in lines]


def test_a_sample_is_the_request_of_its_robot(folder: Path) -> None:
    args = found(folder)
    robot, request = TrainedRobot(ROBOT, GRID), args.request(GRID)
    images = {name: np.asarray(Image.open(folder / f"{name}.png"))[None] for name in ("top", "left", "right")}
    state = {name: np.array(values, np.float32) for name, values in STATE.items()}
    expected = robot.request("push", images, state, 0)
    assert (request.prompt, request.height, request.width) == (expected.prompt, 64, 64)
    assert torch.equal(request.condition, expected.condition)
    assert torch.equal(request.actions.rows, expected.actions.rows)
    assert (args.num_steps, args.guidance, args.shift, args.num_frames, args.fps) == (7, 1.0, 3.0, 5, 10.0)
    assert (args.sources["guidance"], args.sources["shift"]) == ("wam", "as trained")
    record = json.loads(json.dumps(args.record()))
    assert (record["domain_name"], record["raw_action_dim"], record["resolution"]) == ("arm", 3, "80x64")
    assert "robot" not in record


def test_given_actions_come_back_in_the_units_of_the_robot(folder: Path) -> None:
    args = found(folder, model_mode="forward_dynamics", actions=ACTIONS)
    actions = args.request(GRID).actions
    assert (len(actions.rows), actions.clean_rows, actions.offset) == (5, 5, 0)
    torch.testing.assert_close(actions.rows[0], torch.tensor([0.5, -0.5, -0.5]))  # the state, in the range of the rows
    torch.testing.assert_close(actions.rows[1], torch.tensor([0.0, -0.5, 0.5]))  # with the flipped gripper
    described = args.describe_actions(actions.rows)
    np.testing.assert_allclose(described["actions"], ACTIONS, atol=1e-6)
    assert (described["channels"], described["fps"]) == (["joints", "joints", "gripper"], 10.0)
    (folder / "actions.json").write_text(json.dumps(described))
    again = found(folder, model_mode="forward_dynamics", action_path="actions.json")
    torch.testing.assert_close(again.request(GRID).actions.rows, actions.rows)


def test_one_image_may_show_all_cameras(folder: Path) -> None:
    cameras = found(folder).request(GRID).condition
    arranged = cameras[:, 0, :64, :64].permute(1, 2, 0).numpy()  # without padding
    Image.fromarray(arranged).save(folder / "all.png")
    args = found(folder, camera_paths=None, vision_path="all.png")
    assert torch.equal(args.request(GRID).condition, cameras)
    assert args.media == [str(folder / "all.png")]


def test_all_mistakes_of_a_sample_are_reported_at_once(folder: Path) -> None:
    cameras = {"top": "left.png", "left": "left.png", "right": "missing.png"}
    lines = mistakes(
        folder, model_mode="forward_dynamics", state={"joints": [1.0]}, actions=[[1.0, 2.0]], num_frames=9, height=64,
        domain_name="umi", camera_paths=cameras,
    )  # fmt: skip
    assert lines == [
        "domain_name: expected arm, as for the robot of the model, found umi; omit it",
        "num_frames: expected 5, as for the robot of the model, found 9; omit it",
        "height: no effect on a sample with robot actions; omit it",
        "actions: expected 4 rows of 3 finite numbers, found 1 rows of 2",
        "state: expected the parts {'gripper': 1, 'joints': 2}, with their numbers of values, found {'joints': 1}",
        f"{folder}/left.png: expected images of 96x64, as in training, found 32x32",
        f"{folder}/missing.png: No such file or directory",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"limits": None}, "this model has no action heads"),
        ({"limits": (2, 9)}, "actions have 3 channels and domain 5: the model has action heads for 2 channels"),
        ({"limits": (3, 5)}, "actions have 3 channels and domain 5"),
        ({"model_mode": "inverse_dynamics"}, "the model was trained for wam, forward_dynamics only"),
        ({"model_mode": "forward_dynamics"}, "set actions or action_path, with 4 rows of 3 finite numbers"),
        ({"actions": ACTIONS}, "wam generates the actions"),
        ({"actions": ACTIONS, "action_path": "a.json"}, "each sets the robot actions"),
        ({"model_mode": "forward_dynamics", "action_path": "top.png"}, "top.png cannot be read"),
        ({"model_mode": "forward_dynamics", "action_path": "sample.json"}, "expected a list of rows of numbers"),
        ({"camera_paths": None}, "expected a vision_path, or camera_paths of: top, left, right"),
        ({"vision_path": "clip.mp4"}, "expected a vision_path, or camera_paths of: top, left, right"),
        ({"camera_paths": None, "vision_path": "top.png"}, "expected images of 96x96 or 64x64, as in training"),
        ({"robot_dataset": "b"}, "robot_dataset: expected no name, found 'b'"),
        ({"robots": {"a": ROBOT, "b": ROBOT}}, "robot_dataset: expected a or b, found ''"),
        ({"robots": {}, "camera_paths": None}, r"set a vision_path and a domain_name \\(no_action, "),
        (
            {"robots": {}, "camera_paths": None, "vision_path": "top.png", "domain_name": "libero", "fps": 10},
            "set raw_action_dim (actions of libero have no fixed number",
        ),
        ({"robots": {}, "camera_paths": None, "vision_path": "top.png", "domain_name": "umi"}, "training: set fps"),
        (
            {
                "robots": {},
                "camera_paths": None,
                "vision_path": "top.png",
                "domain_name": "umi",
                "fps": 10,
                "action_chunk_size": 6,
            },
            "action_chunk_size: expected a multiple of 4, found 6",
        ),
        ({"model_mode": "forward_dynamics", "action_path": "row.json"}, "found an error: 1 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str, folder: Path) -> None:
    assert any(words.replace("\\", "") in line for line in mistakes(folder, **changes))


def test_clips_of_another_length_or_frame_rate_are_refused(folder: Path) -> None:
    inverse = {"": ROBOT | {"dataset": {**ROBOT["dataset"], "modes": {"inverse_dynamics": 1.0}}}}
    values = {"robots": inverse, "model_mode": "inverse_dynamics", "camera_paths": None}
    assert found(folder, vision_path="clip.mp4", **values).request(GRID).condition.shape == (3, 5, 64, 80)
    assert mistakes(folder, vision_path="short.mp4", **values) == [f"{folder}/short.mp4: expected 5 frames, found 3"]
    assert mistakes(folder, vision_path="fast.mp4", **values) == [
        f"{folder}/fast.mp4: expected 10 fps, found 30; convert the clip"
    ]


def test_other_samples_have_no_robot_actions(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps([{"prompt": "x", "state": STATE}, {"prompt": "x", "model_mode": "wam"}])
    )
    first, second = read_files([str(tmp_path / "a.json")])
    flags = Layer("flag", SampleSettings(view_point="ego_view"), Path())
    with pytest.raises(UserError, match="state, view_point: only for model_mode wam, forward_dynamics, inverse_"):
        decide(first, flags, DEFAULTS, GRID, "model")
    nothing = replace(flags, settings=SampleSettings())
    with pytest.raises(UserError, match="model_mode wam: robot actions are generated by `worldsmith generate` only"):
        decide(second, nothing, DEFAULTS, GRID, "model")
