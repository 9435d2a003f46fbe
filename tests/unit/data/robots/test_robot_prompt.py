"""The JSON prompt is, byte for byte, that of `cosmos_framework` 5eee9ed (`ActionPromptJsonFormatter`, `json.dumps`)."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from worldsmith.data.robots.robot import LiberoRobot, PushTRobot
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_prompt import aspect_name, choose_phrasing, robot_prompt

LIBERO = RobotDataset.Config(robot=LiberoRobot.Config())
PUSHT = RobotDataset.Config(robot=PushTRobot.Config(), steps=32)
FLAT: dict[str, Any] = {"config": PUSHT, "fps": 15.0, "canvas": (736, 544), "idle": None}


def test_the_prompt_is_that_of_the_reference() -> None:
    assert robot_prompt("pick up the cup", LIBERO, idle=(2, 16), fps=20, canvas=(320, 192)) == (
        '{"cinematography": {"framing": "This video contains concatenated views from multiple camera perspectives. '
        'The left half shows the third-person view; the right half shows the wrist-mounted camera."}, "actions": '
        '[{"time": "0:00-0:01", "description": "pick up the cup.", "idle_frame": "2 out of 16."}], "duration": "0s", '
        '"fps": 20.0, "resolution": {"H": 192, "W": 320}, "aspect_ratio": "16,9"}'
    )
    assert robot_prompt("push the block. ", **FLAT) == (
        '{"cinematography": {"framing": "This video is captured from a top-down view of a flat 2D scene."}, '
        '"actions": [{"time": "0:00-0:02", "description": "push the block."}], "duration": "2s", "fps": 15.0, '
        '"resolution": {"H": 544, "W": 736}, "aspect_ratio": "4,3"}'
    )


@pytest.mark.parametrize(
    ("task", "description"),
    [("stop! ", "stop!"), ("Is it?", "Is it?"), ("a.", "a."), (" two  words", "two  words."), ("Tür", "T\\u00fcr.")],
)
def test_a_task_becomes_a_sentence(task: str, description: str) -> None:
    assert f'"description": "{description}"' in robot_prompt(task, **FLAT)


def test_an_empty_task_has_no_prompt() -> None:
    assert robot_prompt("", **FLAT) == robot_prompt("  ", **FLAT) == ""


def test_a_task_alone_or_no_text_can_be_asked_for() -> None:
    found = {form: robot_prompt(" go ", **FLAT | {"config": replace(PUSHT, prompt=form)}) for form in ("task", "none")}
    assert found == {"task": "go", "none": ""}


@pytest.mark.parametrize(
    ("frames", "fps", "time", "duration"),
    [
        (17, 20, "0:00-0:01", "0s"),
        (50, 20, "0:00-0:02", "2s"),
        (70, 20, "0:00-0:04", "3s"),
        (1900, 15, "0:00-2:07", "126s"),
    ],
)
def test_times_are_rounded_and_durations_truncated(frames: int, fps: float, time: str, duration: str) -> None:
    found = json.loads(robot_prompt("go", **FLAT | {"config": replace(PUSHT, steps=frames - 1), "fps": fps}))
    assert (found["actions"][0]["time"], found["duration"]) == (time, duration)


@pytest.mark.parametrize(
    ("size", "name"), [((320, 192), "16,9"), ((512, 768), "2,3"), ((736, 544), "4,3"), ((60, 100), "3,5")]
)
def test_an_aspect_ratio_has_the_name_of_the_table(size: tuple[int, int], name: str) -> None:
    assert aspect_name(*size) == name


def test_one_phrasing_is_chosen() -> None:
    found = Counter(choose_phrasing(" put it down | lay it  down |  ", random.Random(seed)) for seed in range(200))
    assert set(found) == {"put it down", "lay it  down"}
    assert min(found.values()) > 60
    assert choose_phrasing("one task", random.Random(0)) == "one task"
