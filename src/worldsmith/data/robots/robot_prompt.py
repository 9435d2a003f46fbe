"""The JSON prompt of a robot episode, for training and for serving a policy."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

from worldsmith.data.clips.resolution import RESOLUTIONS
from worldsmith.data.robots.robot import VIEWPOINTS

if TYPE_CHECKING:
    from worldsmith.data.robots.robot_dataset import RobotDataset


def robot_prompt(
    task: str, config: RobotDataset.Config, *, idle: tuple[int, int] | None, fps: float, canvas: tuple[int, int]
) -> str:
    """Returns the text of a window for the model, in training and when a policy is served.

    It is "" for an empty task, and if the dataset's `prompt` is "none".

    In the JSON prompt, keys, order and rounding are those of the training of `cosmos_framework`.

    Args:
        task: Instruction in one phrasing, such as "pick up the cup".
        config: Settings of the dataset.
        idle: (number of idle rows, number of rows without history); None: not stated, as for inverse dynamics, where
            it would reveal the actions.
        fps: Frames per second.
        canvas: Size (W, H) in pixels of the padded image.
    """
    if config.prompt != "json" or not task.strip():
        return task.strip() if config.prompt == "task" else ""
    seconds, sentence, robot = config.num_video_frames / fps, task.strip(), config.robot
    entry: dict[str, Any] = {
        "time": f"0:00-{round(seconds) // 60}:{round(seconds) % 60:02d}",
        "description": sentence if sentence.endswith((".", "!", "?")) else f"{sentence}.",
    }
    if idle is not None:
        entry["idle_frame"] = f"{idle[0]} out of {idle[1]}."
    prompt = {
        "cinematography": {"framing": f"{VIEWPOINTS[robot.viewpoint]} {robot.view_description}".rstrip()},
        "actions": [entry],
        "duration": f"{int(seconds)}s",
        "fps": float(fps),
        "resolution": {"H": canvas[1], "W": canvas[0]},
        "aspect_ratio": aspect_name(*canvas),
    }
    return json.dumps(prompt)


def aspect_name(width: int, height: int) -> str:
    """Returns the aspect ratio "W,H" of a size: its name in `RESOLUTIONS`, else the reduced fraction."""
    named = [name for sizes in RESOLUTIONS.values() for name, size in sizes.items() if size == (width, height)]
    divisor = math.gcd(width, height)
    return named[0] if named else f"{width // divisor},{height // divisor}"


def choose_phrasing(task: str, rng: random.Random) -> str:
    """Returns one of the phrasings of a task, which " | " separates, chosen at random; the task if it has only one."""
    return rng.choice([text.strip() for text in task.split(" | ") if text.strip()] or [task])
