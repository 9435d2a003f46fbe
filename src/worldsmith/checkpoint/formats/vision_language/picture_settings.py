"""How a run reads its images and videos, in the preprocessor files of its export, as transformers understands it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.files.json_file import read_json_object, section

logger = logging.getLogger(__name__)

FILES = {"preprocessor_config.json": "image_processor", "video_preprocessor_config.json": "video_processor"}
"""A file of its own for images and for videos; or else a section of the joint file."""
JOINT = "processor_config.json"
MIN_FRAMES, MAX_FRAMES = 4, 768
"""transformers' bounds of the number of frames, where a file does not state them."""


def write_picture_settings(media: Mapping[str, Any], folder: Path) -> None:
    """`media`: the run's `dataloader_train.processor.media`. Files that are not there are left alone."""
    given = {name: value for name, value in media.items() if value is not None}
    joint = read_json_object(folder / JOINT) if (folder / JOINT).is_file() else {}
    for name, part in FILES.items():
        own = (folder / name).is_file()
        if not own and not isinstance(joint.get(part), dict):
            continue
        stated = read_json_object(folder / name) if own else joint[part]
        changed = (for_images if part == "image_processor" else for_videos)(stated, given)
        if own:
            write(folder / name, changed, stated)
        else:
            write(folder / JOINT, {**joint, part: changed}, joint)
            joint[part] = changed
    unsaid = [f"{name} = {given[name]}" for name in ("min_pixels", "max_pixels") if name in given]
    if unsaid:
        logger.warning(
            "the export does not hold what %s means for a video: transformers bounds the pixels of all its frames "
            "together. Give --processor.media.%s when you ask it about videos",
            *(" and ".join(unsaid), unsaid[0].replace(" = ", " ")),
        )


def for_images(stated: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return with_size(stated, given.get("min_pixels"), given.get("max_pixels"))


def for_videos(stated: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A fixed number of frames is the least and the most of them: a rate and a number exclude each other there."""
    changed = with_size(stated, None, given.get("total_pixels"))
    if "fps" in given:
        changed["fps"] = given["fps"]
    least, most = (given.get("nframes", given.get(name)) for name in ("min_frames", "max_frames"))
    if most is not None:
        changed["max_frames"] = most
        least = least or min(changed.get("min_frames") or MIN_FRAMES, most)
    if least is not None:
        changed["min_frames"] = least
        changed["max_frames"] = max(changed.get("max_frames") or MAX_FRAMES, least)
    return changed


def with_size(stated: dict[str, Any], least: int | None, most: int | None) -> dict[str, Any]:
    """With other limits of pixels, which older files have beside `size`."""
    if least is None and most is None:
        return dict(stated)
    changed = {name: value for name, value in stated.items() if name not in ("min_pixels", "max_pixels")}
    size = section(stated, "size")
    return changed | {
        "size": {
            "shortest_edge": least or size.get("shortest_edge") or stated.get("min_pixels"),
            "longest_edge": most or size.get("longest_edge") or stated.get("max_pixels"),
        }
    }


def write(file: Path, changed: Mapping[str, Any], stated: Mapping[str, Any]) -> None:
    if changed != stated:
        file.write_text(json.dumps(changed, indent=2) + "\n", encoding="utf-8")
