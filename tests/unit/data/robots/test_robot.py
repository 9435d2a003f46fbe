"""Columns of episodes become the action rows of `cosmos_framework` 5eee9ed (`pose_utils`, dataset classes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from worldsmith.config import ConfigError, WrongValueError
from worldsmith.data.robots.robot import (
    BridgeRobot,
    DroidJoints,
    DroidPoses,
    LiberoRobot,
    PushTRobot,
    Robot,
    runs_of,
)
from worldsmith.data.stream.errors import DataError

POSES = np.float32(
    [[0.3, 0.1, 0.5, 3, -0.2, 0.4], [0.32, 0.09, 0.51, 3.1, -0.25, 0.45], [0.35, 0.1, 0.5, -3.1, -0.2, 0.5]]
)
GRIPPER = np.float32([[0.2], [0.7], [0.9]])
STATE = "observation.state.cartesian_position"
DROID = {STATE: POSES, "action.gripper_position": GRIPPER, "observation.state.gripper_position": GRIPPER}
MOVED = [0.017805, -0.016224, -0.004447, 0.992869, -0.046875, 0.109605, 0.040854, 0.997564, 0.056551, 0.8]


def widths(data: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: values.shape[1] for name, values in data.items()}


def rows(config: Robot.Config, data: dict[str, np.ndarray]) -> np.ndarray:
    found: np.ndarray = config.build(widths=widths(data)).action_rows(data)
    return found


def test_libero_rotations_are_encoded_again() -> None:
    action = np.float32([[0.1, -0.2, 0.3, 0.1, -0.4, 0.2, 1], [0, 0, 0, 0, 0, 0, 0]])
    turn = [0.901738, 0.173421, 0.395972, -0.212726, 0.975434, 0.057232]
    assert np.allclose(rows(LiberoRobot.Config(), {"action": action}), [[0.1, -0.2, 0.3, *turn, 1]], atol=1e-6)
    for encoding, width in (("axis_angle", 7), ("rot6d", 10), ("matrix", 13)):
        assert rows(LiberoRobot.Config(rotation=encoding), {"action": action}).shape == (1, width)


def test_droid_poses_become_motions_and_the_gripper_is_flipped() -> None:
    second = [0.003315, -0.027914, 0.017602, 0.99437, -0.046295, 0.09531, 0.051006, 0.997564, -0.047596, 0.3]
    assert np.allclose(rows(DroidPoses.Config(), DROID), [MOVED, second], atol=2e-6)
    anchored = [0.017985, -0.045135, 0.011805, 0.974715, -0.097718, 0.200952, 0.096727, 0.995201, 0.014771, 0.3]
    assert np.allclose(rows(DroidPoses.Config(pose_delta="anchored"), DROID), [MOVED, anchored], atol=2e-6)


def test_the_state_row_has_the_absolute_pose() -> None:
    state = [f"pose {STATE} euler_xyz", "flipped_gripper observation.state.gripper_position"]
    robot = DroidPoses.Config(state=state).build(widths=widths(DROID))
    turn = [0.359698, -0.922761, 0.138307, -0.902701, -0.381656, -0.198669]
    assert np.allclose(robot.state_rows(DROID)[0], [0.3, 0.1, 0.5, *turn, 0.8], atol=1e-6)


def test_bridge_poses_are_those_of_the_flange() -> None:
    data = {"observation.state": np.tile(POSES, (1, 2)), "action": np.tile(GRIPPER, (1, 7))}
    first = [-0.007325, -0.021059, 0.005161, 0.992869, 0.046875, 0.109605, -0.040854, 0.997564, -0.056551, 0.2]
    second = [0.005375, -0.02303, -0.017069, 0.99437, 0.046295, 0.09531, -0.051006, 0.997564, 0.047596, 0.7]
    assert np.allclose(rows(BridgeRobot.Config(), data), [first, second], atol=2e-6)


def test_motions_lead_from_pose_to_pose() -> None:
    """The rows, applied one after the other by SciPy, give the stored poses again."""
    config = Robot.Config(embodiment="bridge_orig_lerobot", actions=["pose state euler_xyz"], rotation="axis_angle")
    found = rows(config, {"state": POSES})
    place, turn = POSES[0, :3].astype(float), Rotation.from_euler("xyz", POSES[0, 3:])
    for row, pose in zip(found, POSES[1:]):
        place, turn = place + turn.apply(row[:3]), turn * Rotation.from_rotvec(row[3:])
        assert np.allclose(place, pose[:3], atol=1e-6)
        assert (turn * Rotation.from_euler("xyz", pose[3:]).inv()).magnitude() < 1e-6


def test_joints_and_values_are_as_stored() -> None:
    data = {"action.joint_position": np.arange(21.0).reshape(3, 7), "action.gripper_position": GRIPPER}
    data |= {"observation.state.joint_positions": -data["action.joint_position"]}
    data |= {"observation.state.gripper_position": GRIPPER}
    robot = DroidJoints.Config().build(widths=widths(data))
    assert np.allclose(robot.action_rows(data)[1], [*range(7, 14), 0.3])
    assert np.allclose(robot.state_rows(data)[1], [*range(0, -1), *range(-7, -14, -1), 0.3])
    target = np.float32([[100, 200], [300, 400]])
    assert rows(PushTRobot.Config(), {"action": target}).tolist() == [[100, 200]]


def test_idle_rows_are_counted_as_in_the_reference() -> None:
    """At 20 fps a row is idle below 0.25 mm, 0.075° and a gripper change of 0.01, in runs of three."""
    action = np.zeros((12, 7), np.float32)
    action[3, 0] = 0.001
    action[6, 3] = 0.01
    action[10:, 6] = 1
    robot = LiberoRobot.Config().build(widths={"action": 7})
    found = robot.action_rows({"action": action})
    assert int(robot.count_idle(found, 20.0)) == 6  # rows 0 to 2 and 7 to 9; 4 and 5 are too few
    still = robot.action_rows({"action": np.zeros((12, 7))})
    assert robot.count_idle(np.stack([found, still]), 20.0).tolist() == [6, 11]
    assert int(robot.count_idle(still[:2], 20.0)) == 0


def test_idle_rows_are_not_defined_without_motions() -> None:
    assert LiberoRobot.Config().build(widths={"action": 7}).has_idle_rows
    assert not PushTRobot.Config().build(widths={"action": 2}).has_idle_rows
    assert not DroidPoses.Config(pose_delta="anchored").build(widths=widths(DROID)).has_idle_rows


def test_short_runs_are_removed() -> None:
    flags = np.array([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1], bool)
    assert runs_of(flags, 3).astype(int).tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"embodiment": ""}, "embodiment"),
        ({"embodiment": "my_arm"}, "needs a name and an ID"),
        ({"domain_id": 9}, "needs a name and an ID"),
        ({"domain_id": 32}, "domain_id"),
        ({"actions": []}, "at least one channel"),
        ({"actions": ["turn action"]}, "KIND COLUMN"),
        ({"actions": ["rotation action[3:6]"]}, "needs encoding"),
        ({"actions": ["rotation action[3:6] rot6d"]}, "has 6 values, not 3"),
        ({"actions": ["gripper action[6] rot6d"]}, "has no encoding"),
        ({"state": ["position action[0:2]"]}, "has 3 values, not 2"),
        ({"pose_delta": "anchored"}, "contain no pose"),
        ({"rotation": "matrix"}, "contain no rotation"),
        ({"tool_transform": [1.0] * 12}, "a pose in the actions"),
        ({"actions": ["pose s euler_xyz"], "tool_transform": [1.0]}, "12 numbers"),
        ({"normalization": "minmax"}, "needs the statistics"),
        ({"statistics": "a.json"}, "needs the statistics"),
        ({"normalization": "meanstd", "statistics": "a.json", "clamp": True}, "can be clamped"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], reason: str) -> None:
    config = Robot.Config(**{"embodiment": "pusht", **values})
    with pytest.raises((WrongValueError, ConfigError), match=reason):
        config.check()


@pytest.mark.parametrize(
    "robot", [LiberoRobot, DroidJoints, DroidPoses, BridgeRobot, PushTRobot], ids=lambda robot: robot.__name__
)
def test_known_robots_are_valid(robot: type[Robot]) -> None:
    robot.Config().check()


def test_an_own_robot_has_its_own_domain() -> None:
    config = Robot.Config(embodiment="my_arm", domain_id=24)
    config.check()
    assert config.domain == 24
    assert LiberoRobot.Config().domain == 5


@pytest.mark.parametrize(
    ("config", "data", "reason"),
    [
        (LiberoRobot.Config(), {"other": 7}, "no column action"),
        (LiberoRobot.Config(), {"action": 6}, "which has 6"),
        (Robot.Config(embodiment="x", domain_id=30, actions=["position action"]), {"action": 4}, "expected 3"),
        (PushTRobot.Config(state=["values state"]), {"action": 2, "state": 5}, "state has 5 channels"),
    ],
)
def test_columns_that_do_not_fit_are_refused(config: Robot.Config, data: dict[str, int], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        config.build(widths=data)
