"""What a model folder says of the pictures that its model takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsmith.data.stream.errors import DataError
from worldsmith.files.errors import UserError
from worldsmith.files.json_file import read_json_object

IMAGE_FILE, VIDEO_FILE, JOINT_FILE = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)
BICUBIC = 3
"""The only resampling that is known here, by its number in PIL."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in pixels; the patches are those of the vision tower, before `merge` x `merge` of them become a token."""

    min_pixels: int
    """Least rows * columns of an image; of a video times its frames."""
    max_pixels: int
    patch: int
    merge: int
    temporal: int
    """Frames in a patch."""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def factor(self) -> int:
        """Pixels of which every side is a multiple."""
        return self.patch * self.merge


@dataclass(frozen=True, slots=True)
class VideoLimits(Limits):
    """The same for videos, and how many frames are taken of one."""

    fps: float
    min_frames: int
    max_frames: int
    frame_tokens: int | None
    """Most tokens of a frame (`max_video_tokens` where `cap_pixels_per_frame` is set); None = no cap."""


def has_limits(folder: Path) -> bool:
    """Whether the folder states any; that of a model for text alone has none."""
    return any((folder / name).is_file() for name in (IMAGE_FILE, VIDEO_FILE, JOINT_FILE))


def read_limits(folder: Path) -> tuple[Limits, VideoLimits]:
    """Limits of images and of videos. Raises DataError when the folder does not state them.

    They have no defaults here: those of the Hugging Face classes are a small part of what the models were trained with.
    """
    images, where = read_section(folder, IMAGE_FILE, "image_processor")
    common = common_limits(images, where)
    videos, where = read_section(folder, VIDEO_FILE, "video_processor")
    capped = int(videos.get("max_video_tokens", 768)) if videos.get("cap_pixels_per_frame") else None
    return Limits(**common), VideoLimits(
        **common_limits(videos, where),
        # The published files leave these to the class, which has this rate and these numbers for every model.
        fps=float(videos.get("fps") or 2),
        min_frames=int(videos.get("min_frames") or 4),
        max_frames=int(videos.get("max_frames") or 768),
        frame_tokens=capped,
    )


def read_section(folder: Path, name: str, joint_name: str) -> tuple[dict[str, Any], str]:
    """(settings, the place they are from): a file of their own, or a section of the file that has them all."""
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
        f"{folder} has no {name} (nor a section {joint_name} in {JOINT_FILE}); without it the sizes of pictures are "
        "unknown. Copy it from the model's repository"
    )


def common_limits(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of `Limits`. Raises DataError, naming the place, for settings that are missing or not known here."""
    size = settings.get("size") or {}
    found: dict[str, Any] = {
        "size.shortest_edge": size.get("shortest_edge") or settings.get("min_pixels"),
        "size.longest_edge": size.get("longest_edge") or settings.get("max_pixels"),
        **{name: settings.get(name) for name in ("patch_size", "merge_size", "temporal_patch_size")},
        **{name: settings.get(name) for name in ("image_mean", "image_std")},
    }
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}; copy the file anew from the model's repository")
    expected = {
        "resample": BICUBIC,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
    }
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise DataError(f"{where}: {name} is {settings[name]}; only {value} is supported")
    if abs(settings.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise DataError(f"{where}: rescale_factor is {settings['rescale_factor']}; only 1/255 is supported")
    least, most, patch, merge, temporal, mean, std = found.values()
    return {
        "min_pixels": int(least),
        "max_pixels": int(most),
        "patch": int(patch),
        "merge": int(merge),
        "temporal": int(temporal),
        "mean": tuple(mean),
        "std": tuple(std),
    }
