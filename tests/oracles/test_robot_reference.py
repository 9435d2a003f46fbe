"""Tables, idle rows, noise levels and losses of robot data against numbers that `cosmos_framework` 5eee9ed computed.

`tests/golden/robot_reference.json` has the results of `domain_utils`, `viewpoint_utils` (SHA-256 of each sentence),
`compute_framewise_idle_frames`, `TrainTimeSampler` (with the random values that its seeded generator had drawn) and
`compute_flow_matching_loss`, for the inputs that the functions here build from exact fractions.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from worldsmith.data.clips.video_sample import RobotActions, VideoSample
from worldsmith.data.robots.robot import DOMAINS, VIEWPOINTS, DroidJoints, DroidPoses, LiberoRobot, Viewpoint
from worldsmith.families.cosmos3.robot_actions import ActionFlow
from worldsmith.objectives.noise_schedule import draw_sigma

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/robot_reference.json").read_text(encoding="utf-8"))
ROBOTS: dict[str, tuple[Any, int, float]] = {
    "libero": (LiberoRobot, 16, 20.0),
    "droid_poses": (DroidPoses, 16, 15.0),
    "droid_joints": (DroidJoints, 33, 15.0),
}
"""Name → (robot, rows per window, rows per second)."""
LAYOUTS = [(3, 1, 16, 0, 7), (9, 1, 33, 1, 8), (2, 2, 8, 0, 10), (3, 1, 8, 8, 10), (3, 1, 11, 3, 2)]
"""(latent frames, clean latent frames, action rows, clean action rows, channels): joint prediction, with a state row,
inverse dynamics, forward dynamics, with history."""
CHANNELS = 12
"""Channels of the network, of which a sample uses the first ones."""


def test_domains_and_widths_are_those_of_the_released_weights() -> None:
    assert {name: list(entry) for name, entry in DOMAINS.items()} == GOLDEN["domains"]


def test_viewpoints_have_the_sentences_of_the_released_weights() -> None:
    assert {name: hashlib.sha256(text.encode()).hexdigest() for name, text in VIEWPOINTS.items()} == GOLDEN[
        "viewpoints"
    ]
    assert set(get_args(Viewpoint)) == set(VIEWPOINTS)


def idle_windows(name: str) -> list[np.ndarray]:
    """Windows of rows that move by 0, half or twice the limit of an idle row, since float32 is rough at the limit."""
    _, count, fps = ROBOTS[name]
    limits = {"move": 5e-3 / fps, "turn": math.radians(1.5) / fps, "gripper": 1e-2, "joint": 5e-3 / fps}
    kinds = ["gripper", "joint"] if name == "droid_joints" else ["gripper", "move", "turn"]
    rng, windows = random.Random(count + int(fps)), []
    for _ in range(40):
        rows, joints, gripper = [], [0.25] * 7, 0.0
        restless = rng.random()
        for _ in range(count):
            kind = kinds[int(len(kinds) * rng.random())]
            change = limits[kind] * (0.0 if rng.random() < 0.4 else 2.0 if rng.random() < 0.7 * restless else 0.5)
            gripper += change * (kind == "gripper")
            joints[int(7 * rng.random())] += change * (kind == "joint")
            move, turn = change * (kind == "move"), change * (kind == "turn")
            pose = [0.6 * move, 0.0, -0.8 * move, math.cos(turn), math.sin(turn), 0.0]
            pose += [-math.sin(turn), math.cos(turn), 0.0]
            rows.append([*(joints if name == "droid_joints" else pose), gripper])
        windows.append(np.float32(rows))
    return windows


@pytest.mark.parametrize("name", ROBOTS)
def test_idle_rows_are_counted_as_in_the_reference(name: str) -> None:
    build, count, fps = ROBOTS[name]
    config, widths = build.Config(), {"action": 7}
    if name != "libero":
        widths = {"observation.state.cartesian_position": 6, "observation.state.joint_positions": 7}
        widths |= {"action.joint_position": 7, "action.gripper_position": 1, "observation.state.gripper_position": 1}
    found = config.build(widths=widths).count_idle(np.stack(idle_windows(name)), fps)
    assert found.tolist() == GOLDEN["idle_rows"][name]
    assert len({*found.tolist()}) > 8
    assert {0, count} & {*found.tolist()}


class StoredDraws:
    """Random generator that returns stored values, first the normal and then the uniform ones."""

    def __init__(self, normal: Sequence[float], uniform: Sequence[float]) -> None:
        self.normal, self.uniform = list(normal), list(uniform)

    def standard_normal(self) -> float:
        return self.normal.pop(0)

    def random(self) -> float:
        return self.uniform.pop(0)


@pytest.mark.parametrize("distribution", ["waver", "logitnormal", "ltx2"])
def test_noise_levels_are_those_of_the_reference_for_its_random_values(distribution: str) -> None:
    golden, shifts = GOLDEN["sigmas"][distribution], (3.0, 5.0, 10.0)
    normals = 0 if distribution == "waver" else 1
    found = [
        draw_sigma(StoredDraws(values[:normals], values[normals:]), distribution, shifts[index % 3])  # type: ignore[arg-type]
        for index, values in enumerate(golden["values"])
    ]
    assert found == pytest.approx(golden["sigmas"], abs=1e-6)
    assert max(found) - min(found) > 0.3


def fractions(*shape: int, seed: int) -> Tensor:
    """Multiples of 1/16 from -2 to 2, which float32 holds exactly."""
    numbers = torch.arange(math.prod(shape), dtype=torch.int64)
    return ((numbers * numbers * 7 + numbers * 37 + 11 * seed) % 65 - 32).float().reshape(shape) / 16


def reference_inputs(part: str) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[int]]:
    """(predictions, targets, masks of what is clean, used channels) of each sample, as the reference expects them."""
    shapes = [(CHANNELS, frames, 2, 3) if part == "latents" else (rows, CHANNELS) for frames, _, rows, _, _ in LAYOUTS]
    predicted = [fractions(*shape, seed=index) for index, shape in enumerate(shapes)]
    targets = [fractions(*shape, seed=20 + 3 * index) for index, shape in enumerate(shapes)]
    masks = [
        (torch.arange(frames) < given).float()[:, None, None]
        if part == "latents"
        else (torch.arange(rows) < clean).float()[:, None]
        for frames, given, rows, clean, _ in LAYOUTS
    ]
    return predicted, targets, masks, [channels for *_, channels in LAYOUTS]


@pytest.mark.parametrize("by_active", [False, True])
def test_losses_are_those_of_the_reference(by_active: bool) -> None:
    """`total` is that of a batch in which all elements and samples count; the mean over active samples is our own."""
    flow = ActionFlow(
        ActionFlow.Config(shift=3.0, loss_scale=10.0, action_loss_weight=10.0, normalize_loss_by_active=by_active)
    )
    samples = [
        VideoSample(
            key=str(index), position=index, text_ids=[], caption="", video=None, latents=None,
            latent_shape=(frames, 2, 3), size=(32, 48), num_frames=4 * frames - 3, fps=10.0, condition_frames=given,
            num_tokens=0, cache_key=None, resolution="256",
            actions=RobotActions(torch.zeros(rows, channels), clean, 1, 3, 10.0),
        )
        for index, (frames, given, rows, clean, channels) in enumerate(LAYOUTS)
    ]  # fmt: skip
    predicted, targets, *_ = reference_inputs("latents")
    zeros = [torch.zeros_like(target) for target in targets]
    draws = replace(flow.draw(samples, [target.shape for target in targets], seed=0), noise=targets)
    latents = flow.losses(predicted, zeros, draws)
    velocities, wanted, *_ = reference_inputs("actions")
    drawn = flow.draw_actions(samples, draws, CHANNELS, seed=0)
    assert drawn is not None
    rows = replace(drawn, targets=torch.cat(wanted))
    actions = rows.losses(torch.cat(velocities))
    golden = GOLDEN["losses"][str(by_active)]
    assert latents.tolist() == pytest.approx(golden["latents"], rel=1e-6)
    assert actions.tolist() == pytest.approx(golden["actions"], rel=1e-6)
    assert (golden["latents"][2], golden["actions"][3]) == (0, 0)
    total = float(flow.add_up_parts(latents, actions, draws, rows, tokens=1).sum) / flow.weigh(samples)
    if "total" in golden:
        assert total == pytest.approx(golden["total"], rel=1e-6)
