"""`Robot`: maps columns of an episode to action rows. `LiberoRobot`, `DroidJoints` and others are known datasets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from worldsmith.config import Configurable, WrongValueError, wrong
from worldsmith.config.declare.ranges import Range
from worldsmith.data.robots.normalizer import CLAMPED, Method
from worldsmith.data.robots.rotations import WIDTHS, Encoding, encode_matrix, rotation_angle, rotation_matrix
from worldsmith.data.stream.errors import DataError
from worldsmith.files.errors import require_libraries

if TYPE_CHECKING:
    import numpy as np

DOMAINS: dict[str, tuple[int, int | None]] = {
    "no_action": (0, None), "av": (1, 9), "camera_pose": (2, 9), "hand_pose": (3, None), "pusht": (4, 2),
    "libero": (5, None), "umi": (6, 10), "bridge_orig_lerobot": (7, 10), "droid_lerobot": (8, 10),
    "robomind-franka": (8, 10), "embodiment_b": (9, 30), "robomind-franka-dual": (12, 20), "robomind-ur": (13, 10),
    "agibotworld": (15, 29), "embodiment_c_gripper": (15, 29), "embodiment_c_gripper_ext": (15, 29),
    "xdof_yam": (16, 20), "molmoact2_yam": (16, 20), "abc_yam": (16, 20), "robotwin": (17, 14), "fractal": (20, 10),
    "drawanything": (21, 3), "behavior1k_lerobot": (22, 23), "maniparena": (23, 20),
}  # fmt: skip
"""Embodiment → (domain ID of the released weights, their number of channels or None), as in `cosmos_framework`."""
Viewpoint = Literal["ego_view", "third_person_view", "wrist_view", "concat_view", "top_down_2d_view", "video_game_view"]
VIEWPOINTS: dict[str, str] = {
    "ego_view": "This video is captured from a first-person perspective looking at the scene.",
    "third_person_view": (
        "This video is captured from a third-person perspective looking towards the agent from the front."
    ),
    "wrist_view": "This video is captured from a wrist-mounted camera.",
    "concat_view": "This video contains concatenated views from multiple camera perspectives.",
    "top_down_2d_view": "This video is captured from a top-down view of a flat 2D scene.",
    "video_game_view": "This video is captured from an in-game camera perspective in a virtual environment.",
}
"""Viewpoint → sentence in the prompt. The released weights were trained with exactly these texts."""
POLICY_FILE = "robot_policy.json"
"""File of a run folder with what a policy needs besides the model: settings of the dataset ("dataset"), frame rate
("fps"), width of each column ("columns"), cameras in each row of the image ("views"), size (W, H) of each camera
("sizes"), and the content of the statistics file, or {} ("statistics")."""
MAX_DOMAIN = 31
KINDS = {"position": 3, "rotation": None, "pose": None, "gripper": 1, "flipped_gripper": 1, "joints": 0, "values": 0}
"""Kinds of channel groups, and their number of channels; 0: any, None: follows from the encoding of the rotation."""
GROUP = re.compile(r"(\w+) ([^\s\[\]]+)(?:\[(\d+)(?::(\d+))?\])?(?: (\w+))?")
IDLE_MOVE, IDLE_TURN, IDLE_GRIPPER, IDLE_JOINT = 5e-3, math.radians(1.5), 1e-2, 5e-3
"""Below these, a robot stands still: m/s, rad/s, change of the gripper per row, rad/s."""
IDLE_RUN = 3
"""Min number of consecutive idle rows that count."""


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive channels of a row that are read from one column."""

    kind: str
    column: str
    first: int = 0
    stop: int | None = None
    """Exclusive end of the values of the column; None: all."""
    encoding: str = ""
    """Encoding of the stored rotation; "": the group has none."""

    @classmethod
    def parse(cls, text: str) -> Group:
        """Parses text such as "rotation action[3:6] axis_angle". Raises ValueError with the reason."""
        found = GROUP.fullmatch(text.strip())
        if found is None or found[1] not in KINDS:
            raise ValueError("expected KIND COLUMN[FIRST:END] ENCODING, with a KIND of " + ", ".join(KINDS))
        kind, column, first, end, encoding = found.groups()
        stop = int(end) if end else int(first) + 1 if first else None
        turns = KINDS[kind] is None
        if turns != (encoding in WIDTHS):
            raise ValueError(f"{kind} {'needs' if turns else 'has no'} encoding ({', '.join(WIDTHS)})")
        group = cls(kind, column, int(first or 0), stop, encoding or "")
        wanted = group.stored_width
        if wanted and stop is not None and stop - group.first != wanted:
            raise ValueError(f"{kind} {encoding or ''} has {wanted} values, not {stop - group.first}")
        return group

    @property
    def stored_width(self) -> int:
        """Number of values that the kind requires; 0: any."""
        fixed = KINDS[self.kind]
        return WIDTHS[self.encoding] + 3 * (self.kind == "pose") if fixed is None else fixed

    def channel_kinds(self, rotation: str) -> list[str]:
        """Returns the kind of each channel of a row; `rotation` is the encoding of rotations in it."""
        if self.encoding:
            return [*["position"] * (3 * (self.kind == "pose")), *["rotation"] * WIDTHS[rotation]]
        assert self.stop is not None
        return [self.kind] * (self.stop - self.first)


def listed(*items: Any) -> Any:
    """Returns the dataclass field of a list with the default `items`."""
    return field(default_factory=lambda: list(items))


class Robot(Configurable):
    """Columns of a LeRobot dataset that form the action rows of a robot, and the cameras that show it.

    Row i of a window leads from frame i to frame i + 1. An entry of `actions` or `state` is a group of channels:
    "KIND COLUMN", with a range of values in brackets if it is a part of the column, and for rotations with their
    encoding in the dataset. Kinds: position (3 values, relative), rotation (relative), pose (absolute position and
    rotation, from which the motion to the next frame is computed), gripper, flipped_gripper (1 - value), joints, values
    (as stored, without a meaning for idle rows).
    """

    class Config(Configurable.Config):
        embodiment: str = ""
        """Name of the robot: one of the released domains, such as droid_lerobot, or an own name with domain_id."""
        domain_id: Annotated[int, Range(ge=0, le=MAX_DOMAIN, also=-1)] = -1
        """Embodiment domain, which selects the weights of the action heads; -1 = that of the embodiment."""
        cameras: list[str] = listed()
        """Rows of the image from top to bottom, each with one camera or several as "left | right"; empty = the only
        camera. The first camera keeps its size; each row has the width of the first one."""
        viewpoint: Viewpoint = "third_person_view"
        """Viewpoint that the JSON prompt states."""
        view_description: str = ""
        """Text after the viewpoint in the JSON prompt, such as the arrangement of the cameras."""
        actions: list[str] = listed("values action")
        """Channels of an action row, as groups "KIND COLUMN[FIRST:END] ENCODING" (docs/robots.md)."""
        state: list[str] = listed()
        """Channels of the state at the first frame, which becomes row 0, as for actions; empty = no state row."""
        rotation: Encoding = "rot6d"
        """Encoding of rotations in the rows."""
        pose_delta: Literal["frame_wise", "anchored"] = "frame_wise"
        """Start of the motion that a pose gives: the frame before, or the first frame of the window."""
        tool_transform: list[float] = listed()
        """Fixed transform after each pose, 3 rows of 4 numbers (rotation, translation); empty = none."""
        normalization: Method = "none"
        """Normalization of the rows; the methods with "rot" in their name use the statistics of rotations, too."""
        statistics: str = ""
        """JSON file with the statistics of the channels, written by `worldsmith dataset statistics`."""
        clamp: bool = False
        """Clamp normalized values to [-1, 1]; larger values are lost."""

        @property
        def domain(self) -> int:
            """Embodiment domain of the rows."""
            return self.domain_id if self.domain_id >= 0 else DOMAINS[self.embodiment][0]

        def convention(self, fps: float) -> dict[str, Any]:
            """Returns the metadata of statistics files on which the values of motions depend."""
            return {"pose_convention": self.pose_delta, "rotation_format": self.rotation, "fps": fps}

        def check(self) -> None:
            for name in ("actions", "state"):
                for text in getattr(self, name):
                    try:
                        Group.parse(text)
                    except ValueError as error:
                        raise WrongValueError({name: text}, why=str(error)) from None
            if not self.actions:
                raise wrong(self, "actions", why="a row needs at least one channel")
            if not self.embodiment or (self.embodiment not in DOMAINS) != (self.domain_id >= 0):
                why = "a released domain has an ID, an own embodiment needs a name and an ID"
                remedy = f"use one of {', '.join(DOMAINS)}, or set domain_id for an own name"
                raise wrong(self, "embodiment", "domain_id", why=why, remedy=remedy)
            kinds = {Group.parse(text).kind for text in self.actions}
            has_pose = "pose" in kinds
            if self.rotation != "rot6d" and not kinds & {"rotation", "pose"}:
                raise wrong(self, "rotation", "actions", why="the actions contain no rotation")
            if self.pose_delta == "anchored" and not has_pose:
                raise wrong(self, "pose_delta", "actions", why="the actions contain no pose")
            if self.tool_transform and (len(self.tool_transform) != 12 or not has_pose):
                raise wrong(self, "tool_transform", "actions", why="expected 12 numbers, and a pose in the actions")
            if (self.normalization == "none") == bool(self.statistics):
                why = "a normalization needs the statistics of the channels, and statistics need a normalization"
                raise wrong(self, "normalization", "statistics", why=why, remedy="set both or none of them")
            if self.clamp and self.normalization not in CLAMPED:
                why = f"only {', '.join(CLAMPED)} can be clamped"
                raise wrong(self, "clamp", "normalization", why=why)

    def __init__(self, config: Config, *, widths: Mapping[str, int]) -> None:
        """Resolves the groups of channels.

        Args:
            config: Settings.
            widths: Number of values of each column of the dataset.

        Raises:
            DataError: If a column is missing or too narrow, or the state row has another width than an action row.
            UserError: If SciPy is not installed.
        """
        require_libraries("a robot", "lerobot", "scipy")
        self.config = config
        self.actions = [resolve_group(text, widths) for text in config.actions]
        self.state = [resolve_group(text, widths) for text in config.state]
        self.columns = sorted({group.column for group in (*self.actions, *self.state)})
        kinds = [kind for group in self.actions for kind in group.channel_kinds(config.rotation)]
        self.kinds = [kind.removeprefix("flipped_") for kind in kinds]
        """Kind of each channel: position, rotation, gripper, joints or values."""
        self.flipped = [kind == "flipped_gripper" for kind in kinds]
        """Whether each channel of an action row is 1 - the stored value."""
        self.width = len(kinds)
        """Number of channels of a row."""
        self.has_idle_rows = config.pose_delta != "anchored" and {*kinds} != {"values"}
        """Whether idle rows are defined: not for anchored poses, and not if all channels are `values`."""
        state_width = sum(len(group.channel_kinds(config.rotation)) for group in self.state)
        if self.state and state_width != self.width:
            raise DataError(f"robot.state has {state_width} channels: expected those of an action row, {self.width}")

    def action_rows(self, data: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the action rows [frames - 1, channels] of consecutive frames, float32, not normalized.

        Args:
            data: Values [frames, n] of each column in `columns`.
        """
        return self._rows(self.actions, data)[:-1]

    def state_rows(self, data: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the state of the robot at each frame [frames, channels], float32, not normalized."""
        return self._rows(self.state, data, absolute=True)

    def _rows(self, groups: list[Group], data: Mapping[str, np.ndarray], *, absolute: bool = False) -> np.ndarray:
        import numpy as np

        parts: list[np.ndarray] = []
        for group in groups:
            values = data[group.column][:, group.first : group.stop].astype(np.float64)
            if group.kind == "flipped_gripper":
                values = 1 - values
            elif group.kind == "rotation":
                values = encode_matrix(rotation_matrix(values, group.encoding), self.config.rotation)
            elif group.kind == "pose":
                poses = np.tile(np.eye(4), (len(values), 1, 1))
                poses[:, :3, :3], poses[:, :3, 3] = rotation_matrix(values[:, 3:], group.encoding), values[:, :3]
                if self.config.tool_transform:
                    poses = poses @ np.reshape([*self.config.tool_transform, 0, 0, 0, 1], (4, 4))
                if not absolute:
                    starts = poses[:1] if self.config.pose_delta == "anchored" else poses
                    poses = np.asarray(np.linalg.inv(starts) @ np.concatenate((poses[1:], poses[-1:])))
                turns = encode_matrix(poses[:, :3, :3], self.config.rotation)
                values = np.concatenate((poses[:, :3, 3], turns), -1)
            parts.append(values)
        return np.concatenate(parts, -1).astype(np.float32)

    def count_idle(self, rows: np.ndarray, fps: float) -> np.ndarray:
        """Returns the number of idle rows in each window of rows, int [...], where `has_idle_rows` is true.

        A row is idle if the robot moves and turns slower than the limits `IDLE_MOVE`, …, and if at least `IDLE_RUN`
        such rows follow each other. The first row of a window has no row before it, so its gripper and joints count as
        unchanged.

        Args:
            rows: Rows [..., N, channels], not normalized.
            fps: Rows per second.
        """
        import numpy as np

        kinds, idle = np.array(self.kinds), np.ones(rows.shape[:-1], bool)
        if (moved := kinds == "position").any():
            idle &= np.linalg.norm(rows[..., moved], axis=-1) < IDLE_MOVE / fps
        if (turned := kinds == "rotation").any():
            each = rows[..., turned].reshape(*rows.shape[:-1], -1, WIDTHS[self.config.rotation])
            idle &= rotation_angle(rotation_matrix(each, self.config.rotation)).max(-1) < IDLE_TURN / fps
        for kind, limit in (("gripper", IDLE_GRIPPER), ("joints", IDLE_JOINT / fps)):
            if (chosen := kinds == kind).any():
                change = np.abs(np.diff(rows[..., chosen], axis=-2, prepend=rows[..., :1, chosen])).max(-1)
                idle &= change < limit
        return runs_of(idle, IDLE_RUN).sum(-1)


def resolve_group(text: str, widths: Mapping[str, int]) -> Group:
    """Returns the group of channels of `text` with its range of values. Raises DataError if the column lacks them.

    `widths` has the number of values of each column of the dataset.
    """
    group = Group.parse(text)
    if group.column not in widths:
        raise DataError(f"robot: '{text}': the dataset has no column {group.column}; it has {', '.join(widths)}")
    width = widths[group.column]
    stop = width if group.stop is None else group.stop
    wanted = group.stored_width
    if stop > width or stop <= group.first or (wanted and stop - group.first != wanted):
        raise DataError(
            f"robot: '{text}': expected {wanted or 'one or more'} of the values of {group.column}, which has {width}"
        )
    return Group(group.kind, group.column, group.first, stop, group.encoding)


def runs_of(flags: np.ndarray, length: int) -> np.ndarray:
    """Returns `flags` [..., n] without the runs of True values that are shorter than `length`."""
    import numpy as np
    from scipy.ndimage import binary_opening

    return np.asarray(binary_opening(flags, np.ones((1,) * (flags.ndim - 1) + (length,))))


class LiberoRobot(Robot):
    """LIBERO: stored motion per frame, with rotations re-encoded; the camera of the scene left, of the wrist right."""

    class Config(Robot.Config):
        embodiment: str = "libero"
        cameras: list[str] = listed("observation.images.image | observation.images.wrist_image")
        viewpoint: Viewpoint = "concat_view"
        view_description: str = (
            "The left half shows the third-person view; the right half shows the wrist-mounted camera."
        )
        actions: list[str] = listed("position action[0:3]", "rotation action[3:6] axis_angle", "gripper action[6]")


class DroidJoints(Robot):
    """DROID: commanded joint angles and the flipped gripper; the state row has the measured ones."""

    class Config(Robot.Config):
        embodiment: str = "droid_lerobot"
        cameras: list[str] = listed(
            "observation.image.wrist_image_left",
            "observation.image.exterior_image_1_left | observation.image.exterior_image_2_left",
        )
        viewpoint: Viewpoint = "concat_view"
        view_description: str = (
            "The top row is from the wrist-mounted camera. The bottom row contains two horizontally concatenated "
            "third-person perspective views of the scene from opposite sides, with the robot visible."
        )
        actions: list[str] = listed("joints action.joint_position", "flipped_gripper action.gripper_position")
        state: list[str] = listed(
            "joints observation.state.joint_positions", "flipped_gripper observation.state.gripper_position"
        )


class DroidPoses(DroidJoints):
    """DROID: motion of the gripper's pose in OpenCV axes, and the flipped gripper."""

    class Config(DroidJoints.Config):
        actions: list[str] = listed(
            "pose observation.state.cartesian_position euler_xyz", "flipped_gripper action.gripper_position"
        )
        state: list[str] = listed()
        tool_transform: list[float] = listed(0.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)


class BridgeRobot(Robot):
    """Bridge: motion of the flange's pose in OpenCV axes, and the commanded gripper."""

    class Config(Robot.Config):
        embodiment: str = "bridge_orig_lerobot"
        cameras: list[str] = listed("observation.images.image_0")
        viewpoint: Viewpoint = "ego_view"
        actions: list[str] = listed("pose observation.state[0:6] euler_xyz", "gripper action[6]")
        tool_transform: list[float] = listed(0.0, -1.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.093575)


class PushTRobot(Robot):
    """PushT: absolute target (x, y) of the agent in pixels, seen from above."""

    class Config(Robot.Config):
        embodiment: str = "pusht"
        cameras: list[str] = listed("observation.image")
        viewpoint: Viewpoint = "top_down_2d_view"
