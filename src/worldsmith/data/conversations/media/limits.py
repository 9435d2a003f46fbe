"""Limits on images and videos in the processor files of a model folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from worldsmith.data.stream.errors import DataError
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import are_numbers, read_json_object, read_optional_json

IMAGE_FILE = "preprocessor_config.json"
VIDEO_FILE = "video_preprocessor_config.json"
JOINT_FILE = "processor_config.json"
CONFIG_FILE = "config.json"
BICUBIC = 3
"""The only supported value of `resample` in the processor files: bicubic resampling in PIL."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VideoStyle:
    """Properties of a model's video preprocessing that its processor files do not state."""

    times_as_text: bool = True
    """Whether the text has a timestamp, such as `<1.5 seconds>`, before each frame; False: position IDs encode the
    times (`second_per_grid_ts`)."""
    per_frame: bool = False
    """Whether the pixel limits of videos apply to one frame; False: to all frames of a video together."""
    without_file: bool = False
    """Whether released models of the type have preprocessor settings only for images; the video limits are then those
    of the package qwen-vl-utils."""


QWEN3_VL = VideoStyle()
STYLES = {"qwen2_5_vl": VideoStyle(times_as_text=False, per_frame=True, without_file=True)}
"""How videos are written into the prompt, by `model_type` of config.json; other models use the style of Qwen3-VL."""
CAPPED_SHARE, LEAST_GROWTH = 0.9, 1.05
"""Constants of transformers and qwen-vl-utils: a video gets at most 0.9 of `max_video_tokens`, and a frame of a long
video at least 1.05 times the min pixels."""
UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size of images, and the patches and normalization of the vision encoder."""

    min_pixels: int
    """Min pixels of an image; for videos, of a frame if the style is `per_frame`, else of all frames together."""
    max_pixels: int
    """Max pixels of an image; for videos, of all frames together."""
    patch: int
    """Pixels per side of a patch."""
    merge: int
    """Patches per side of a token: `merge` x `merge` patches form a token."""
    temporal: int
    """Temporal patch size in frames."""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def factor(self) -> int:
        """Number of pixels of which height and width must be multiples: the side of a token."""
        return self.patch * self.merge


@dataclass(frozen=True, slots=True)
class VideoLimits(Limits):
    """Limits on the frame size and the number of sampled frames of videos."""

    fps: float
    """Frames that are sampled per second of video."""
    min_frames: int
    max_frames: int
    frame_pixels: int | None
    """Max pixels of a frame; None = no limit."""
    frame_floor: int
    """Lower bound of the max pixels of a frame in a long video."""
    style: VideoStyle


def has_limits(folder: Path) -> bool:
    """Returns whether a model folder contains a processor file with image limits; False for text-only models."""
    return any((folder / name).is_file() for name in (IMAGE_FILE, VIDEO_FILE, JOINT_FILE))


def read_limits(folder: Path, *, qwen_vl_utils: bool = False) -> tuple[Limits, VideoLimits]:
    """Reads the limits on the sizes of images and videos from the processor files of a model folder.

    There are no default limits here: those of the Hugging Face classes are far below the limits with which the models
    were trained.

    Args:
        folder: Model folder.
        qwen_vl_utils: Use the video limits of the package qwen-vl-utils instead of those of the folder.

    Returns:
        (limits on images, limits on videos)

    Raises:
        DataError: If the folder does not contain the limits, or contains unsupported settings.
    """
    images, where = read_section(folder, IMAGE_FILE, "image_processor")
    common = common_limits(images, where)
    style = find_style(folder)
    if style.without_file and not states_videos(folder):
        if not qwen_vl_utils:
            warn_of_defaults(folder)
        videos, qwen_vl_utils = images, True
    else:
        videos, where = read_section(folder, VIDEO_FILE, "video_processor")
    stated = common_limits(videos, where)
    if qwen_vl_utils:
        area = (stated["patch"] * stated["merge"]) ** 2
        stated |= {"min_pixels": 128 * area, "max_pixels": 768 * area}
        videos, style = {"cap_pixels_per_frame": True, "max_video_tokens": 128_000}, replace(style, per_frame=True)
    return Limits(**common), VideoLimits(
        **stated | max_pixel_fields(videos, stated, style),
        style=style,
        # The published files leave these to the class, which has this rate and these numbers for every model.
        fps=float(videos.get("fps") or 2),
        min_frames=int(videos.get("min_frames") or 4),
        max_frames=int(videos.get("max_frames") or 768),
    )


def max_pixel_fields(settings: Mapping[str, Any], stated: Mapping[str, Any], style: VideoStyle) -> dict[str, Any]:
    """Returns fields of `VideoLimits` as a dict: `frame_pixels`, `frame_floor` and, for some models, `max_pixels`.

    Args:
        settings: Video settings of the processor file, with `cap_pixels_per_frame` and `max_video_tokens`.
        stated: Fields of `Limits` for videos as a dict: pixel limits and patch sizes.
        style: Video style of the model; with `per_frame`, the result contains `max_pixels`.
    """
    tokens = settings.get("max_video_tokens") if settings.get("cap_pixels_per_frame") else 0
    area = (stated["patch"] * stated["merge"]) ** 2
    floor = int(stated["min_pixels"] * LEAST_GROWTH)
    if not style.per_frame:
        frame = None if tokens == 0 else int(768 if tokens is None else tokens) * area
        return {"frame_pixels": frame, "frame_floor": floor}
    if tokens == 0:
        return {
            "frame_pixels": stated["max_pixels"],
            "frame_floor": min(floor, stated["max_pixels"]),
            "max_pixels": UNBOUNDED,
        }
    total = int((128_000 if tokens is None else tokens) * area * CAPPED_SHARE) * stated["temporal"]
    return {"frame_pixels": stated["max_pixels"], "frame_floor": floor, "max_pixels": total}


@cache
def warn_of_defaults(folder: Path) -> None:
    """Logs a warning, once per model folder, that video limits are those of qwen-vl-utils."""
    logger.warning(
        "%s has no %s: video frames are scaled as in qwen-vl-utils, to 128 to 768 tokens per frame and 115,200 per "
        "video; transformers would apply the image limits to videos",
        folder, VIDEO_FILE,
    )  # fmt: skip


def find_style(folder: Path) -> VideoStyle:
    """Returns the properties of a model's video preprocessing that its processor files do not state.

    They depend on `model_type` in `config.json`. If the type or the file is missing, or `STYLES` has no entry for the
    type, they are those of Qwen3-VL.

    Args:
        folder: Model folder.
    """
    return STYLES.get(str(read_optional_json(folder / CONFIG_FILE).get("model_type")), QWEN3_VL)


def states_videos(folder: Path) -> bool:
    joint = read_optional_json(folder / JOINT_FILE).get("video_processor")
    return (folder / VIDEO_FILE).is_file() or isinstance(joint, dict)


def read_section(folder: Path, name: str, joint_name: str) -> tuple[dict[str, Any], str]:
    """Returns (settings, their location for messages) from the file `name`, else from a section of `JOINT_FILE`.

    Args:
        folder: Model folder.
        name: File with the settings.
        joint_name: Key of the section in `JOINT_FILE`.

    Raises:
        DataError: If the settings do not exist or cannot be read.
    """
    try:
        if (folder / name).is_file():
            return read_json_object(folder / name), str(folder / name)
        if (folder / JOINT_FILE).is_file():
            found = read_json_object(folder / JOINT_FILE).get(joint_name)
            if isinstance(found, dict):
                return found, f"{folder / JOINT_FILE}: {joint_name}"
    except UserError as error:
        raise DataError(str(error)) from error
    raise DataError(
        f"{folder} has no {name} (nor a section {joint_name} in {JOINT_FILE}), which sets the image limits. Copy it "
        "from the model's repository"
    )


def common_limits(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Checks the settings of a processor file, and returns the fields of `Limits` as a dict.

    Args:
        settings: Settings of a processor file.
        where: Location of the settings for error messages.

    Raises:
        DataError: If a setting is missing or unsupported.
    """
    size = settings.get("size") or {}
    names = ("patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std")
    found: dict[str, Any] = {
        "size.shortest_edge": size.get("shortest_edge") or settings.get("min_pixels"),
        "size.longest_edge": size.get("longest_edge") or settings.get("max_pixels"),
        **{name: settings.get(name) for name in names},
    }
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}; copy the file again from the model's repository")
    steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
    expected = {"resample": BICUBIC, **dict.fromkeys(steps, True)}
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise DataError(f"{where}: {name} is {settings[name]}; only {value} is supported")
    if abs(settings.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise DataError(f"{where}: rescale_factor is {settings['rescale_factor']}; only 1/255 is supported")
    least, most, patch, merge, temporal, mean, std = found.values()
    if not are_numbers(mean):
        raise DataError(f"{where}: image_mean: expected finite numbers, found {mean!r}")
    if not are_numbers(std, above=0):
        raise DataError(f"{where}: image_std: expected finite numbers above 0, found {std!r}")
    return {
        "min_pixels": int(least),
        "max_pixels": int(most),
        "patch": int(patch),
        "merge": int(merge),
        "temporal": int(temporal),
        "mean": tuple(mean),
        "std": tuple(std),
    }
