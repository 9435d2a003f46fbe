"""How a run reads its images and videos, in the preprocessor files of its export, as transformers understands it."""

from __future__ import annotations

import json
import logging
import math
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
BY_FRAME: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
        "cap_pixels_per_frame": True,
        "max_video_tokens": 128_000,
    }
}
"""Model types whose limits of pixels are those of one frame, with what a run takes without a file for videos."""


def write_picture_settings(media: Mapping[str, Any], folder: Path, model_type: str = "") -> None:
    """`media`: the run's `dataloader_train.processor.media`. Files that are not there are left alone.

    Only a missing file for videos is written where transformers would take the limits of images for them.
    """
    given = {name: value for name, value in media.items() if value is not None}
    joint = read_json_object(folder / JOINT) if (folder / JOINT).is_file() else {}
    by_frame = BY_FRAME.get(model_type)
    images, videos = FILES
    if by_frame is not None and (folder / images).is_file() and not (folder / videos).is_file():
        same = {name: value for name, value in read_json_object(folder / images).items() if name in SHARED}
        write(folder / videos, {**same, **by_frame}, {})
    for name, part in FILES.items():
        own = (folder / name).is_file()
        if not own and not isinstance(joint.get(part), dict):
            continue
        stated = read_json_object(folder / name) if own else joint[part]
        changed = for_images(stated, given) if part == "image_processor" else for_videos(stated, given, by_frame)
        if own:
            write(folder / name, changed, stated)
        else:
            write(folder / JOINT, {**joint, part: changed}, joint)
            joint[part] = changed
    if by_frame is not None:
        return
    unsaid = [f"{name} = {given[name]}" for name in ("min_pixels", "max_pixels") if name in given]
    if unsaid:
        logger.warning(
            "the export does not hold what %s means for a video: transformers bounds the pixels of all its frames "
            "together. Give --processor.media.%s when you ask it about videos",
            *(" and ".join(unsaid), unsaid[0].replace(" = ", " ")),
        )


def for_images(stated: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return with_size(stated, given.get("min_pixels"), given.get("max_pixels"))


def for_videos(
    stated: dict[str, Any], given: Mapping[str, Any], by_frame: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A fixed number of frames is the least and the most of them: a rate and a number exclude each other there."""
    if by_frame is None:
        changed = with_size(stated, None, given.get("total_pixels"))
    else:
        stated = {**stated, **by_frame} if given.get("video_limits") == "qwen_vl_utils" else stated
        least, most = given.get("min_pixels"), given.get("max_pixels")
        stated_least = section(stated, "size").get("shortest_edge") or stated["min_pixels"]
        changed = with_size(stated, least or (most and min(stated_least, most)), most)
        if most is not None and most < stated_least:
            changed["cap_pixels_per_frame"] = False  # it would leave a frame more than `most`
        if "total_pixels" in given:
            token = 2 * (stated["patch_size"] * stated["merge_size"]) ** 2 * CAPPED_SHARE
            changed |= {"cap_pixels_per_frame": True, "max_video_tokens": math.ceil(given["total_pixels"] / token)}
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


SHARED = ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std", "resample", "rescale_factor")
"""What images and videos of a model have in common."""
CAPPED_SHARE = 0.9
"""Of `max_video_tokens`, what a video may have."""


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
