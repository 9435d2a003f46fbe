"""Prompts from the command line and from files, as generation requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.lines import read_lines
from worldsmith.sampling.requests import GenerationRequest

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.latent_grid import LatentGrid

NUMBERS = {"seed": int, "height": int, "width": int, "num_frames": int, "fps": float, "condition_frames": int}
TEXTS = ("prompt", "negative_prompt", "image", "video")
FILES = ("image", "video")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One prompt with the settings that it brings along."""

    where: str
    settings: dict[str, Any]
    """Any of prompt, negative_prompt, image, video, seed, height, width, num_frames, fps, condition_frames."""
    notes: dict[str, Any]
    """Further keys of the line. They change nothing and are copied to the record of the video."""


def read_prompts(path: Path) -> list[PromptLine]:
    """A .jsonl file of objects with 'prompt', or any other text file with one prompt a line; empty lines are skipped.

    Paths of images and videos are relative to the file. Raises ValueError with file and line for what is no prompt.
    """
    lines = []
    for number, text in enumerate(read_lines(path), start=1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        if path.suffix == ".jsonl":
            lines.append(parse_line(text, where, path.parent))
        else:
            lines.append(PromptLine(where, {"prompt": text.strip()}, {}))
    if not lines:
        raise ValueError(f"{path} has no prompts; expected one a line")
    return lines


def parse_line(text: str, where: str, folder: Path) -> PromptLine:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(record, dict) or "prompt" not in record:
        raise ValueError(f"{where}: expected a JSON object with the key 'prompt', found {text[:80]!r}")
    if isinstance(record["prompt"], dict):  # a structured caption; training writes it in the same way
        record["prompt"] = json.dumps(record["prompt"], ensure_ascii=False)
    settings = {key: record.pop(key) for key in (*TEXTS, *NUMBERS) if key in record and record[key] is not None}
    for key, value in settings.items():
        accepted: tuple[type, ...] = (str,) if key in TEXTS else (int, float) if NUMBERS[key] is float else (int,)
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise ValueError(f"{where}: '{key}' must be {'text' if key in TEXTS else 'a number'}, found {value!r}")
    for key in FILES:
        if key in settings:
            settings[key] = str(folder / settings[key])
    return PromptLine(where, settings, record)


def to_request(line: PromptLine, defaults: dict[str, Any], grid: LatentGrid, *, seed: int) -> GenerationRequest:
    """The request of a line; what it leaves open comes from `defaults`, and then there is nothing that may miss.

    Raises ValueError, naming the line, for a size that nobody gives and for an image and a video at once.
    """
    values = {"seed": seed, **{k: v for k, v in defaults.items() if v is not None}, **line.settings}
    missing = [name for name in ("height", "width", "num_frames", "fps") if name not in values]
    if missing:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ValueError(
            f"{line.where}: the model does not say which {', '.join(missing)} it was trained with; give {flags}"
        )
    image, video = values.get("image"), values.get("video")
    if any(key in line.settings for key in FILES):  # a line's own condition replaces the common one
        image, video = line.settings.get("image"), line.settings.get("video")
    if image and video:
        raise ValueError(f"{line.where}: give an image or a video as the condition, not both")
    if not image and not video and values.get("condition_frames"):
        raise ValueError(f"{line.where}: condition_frames needs an image or a video to take the frames from")
    condition_frames = values.get("condition_frames", 1 if image else 2 if video else 0)
    if image and condition_frames != 1:
        raise ValueError(
            f"{line.where}: an image gives 1 clean latent frame, found condition_frames={condition_frames}"
        )
    return GenerationRequest(
        prompt=values["prompt"],
        seed=values["seed"],
        height=values["height"],
        width=values["width"],
        num_frames=values["num_frames"],
        fps=float(values["fps"]),
        negative_prompt=values.get("negative_prompt"),
        condition=read_condition(image, video, grid.pixel_frames(max(1, condition_frames))),
        condition_frames=condition_frames,
    )


def read_condition(image: str | None, video: str | None, frames: int) -> Tensor | None:
    """The picture, or the opening frames of the video, uint8 [3, T, H, W], upright.

    Raises ValueError, naming the file, for what cannot be read.
    """
    from worldsmith.sampling.video_writer import read_image

    if image:
        return read_image(image)[:, None]
    if video:
        import torch

        from worldsmith.data.clips.video_reader import read_opening
        from worldsmith.data.stream.errors import SampleError

        try:
            return torch.from_numpy(read_opening(video, frames))
        except SampleError as error:
            raise ValueError(f"{video}: {error.detail} ({error.reason})") from None
    return None
