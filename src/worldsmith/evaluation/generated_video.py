"""A generated video on disk, and the real video that it is compared with, if it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError
from worldsmith.sampling.sample_files import is_image_file, read_condition

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.sampling.sample_args import SampleArgs

RATE = 0.02
"""Max relative difference of frame rates at which two videos still show the same points in time."""


@dataclass(frozen=True)
class GeneratedVideo:
    """Generated video or image on disk, with the arguments that it was generated with.

    If known, the real video that it is compared with is included. Frames are loaded on first use.
    """

    args: Mapping[str, Any]
    """Arguments of the sample, as in `sample_args.json`."""
    file: Path
    kept: int
    """Number of given (conditioning) frames at the start."""
    source: Path | None
    """File of the real video, which starts at the same frame; None if it is not known."""
    is_real: bool = False
    """Whether `video` is the real video."""

    @property
    def name(self) -> str:
        return str(self.args["name"])

    def without_frames(self) -> GeneratedVideo:
        """Returns a copy without loaded frames, so that frames that the copy loads are freed together with the copy."""
        return replace(self)

    def as_real(self) -> GeneratedVideo | None:
        """Returns a copy whose `video` is the real video; None if that is not known or cannot be compared."""
        sample = replace(self, is_real=True)
        return None if isinstance(sample.real, str) else sample

    @cached_property
    def video(self) -> Tensor:
        """The frames of the generated video (of the real one if `is_real`), uint8 [3, T, H, W]."""
        if self.is_real and not isinstance(self.real, str):
            return self.real
        return read_condition(str(self.file), self.args["num_frames"])

    @cached_property
    def real(self) -> Tensor | str:
        """The real video in the size and length of the generated one, uint8 [3, T, H, W].

        A string with the reason if the real video is unknown or cannot be compared.
        """
        from worldsmith.data.video_decoder import examine
        from worldsmith.sampling.requests import fit

        if self.source is None:
            return "no real video is known (extra.real)"
        frames, fps = self.args["num_frames"], self.args["fps"]
        try:
            real = read_condition(str(self.source), frames)
        except ValueError as error:
            return str(error)
        if real.shape[1] < frames:
            return "the real video is shorter"
        if frames > 1 and abs(examine(str(self.source))[1].fps - fps) > RATE * fps:
            return "the real video has another frame rate"
        return fit(real, self.args["height"], self.args["width"])


def find_real(sample: SampleArgs, folder: Path) -> Path | None:
    """Finds the real video with which the generated video of a sample is compared.

    This is the path `real` in the sample's `extra`, else the video whose first frames the sample continues.

    Args:
        sample: Arguments of the sample.
        folder: Folder to which `extra.real` is relative.

    Returns:
        Path of the real video; None if it is not known.

    Raises:
        UserError: If `extra.real` is not an existing file.
    """
    stated = sample.extra.get("real")
    if stated is None:
        video = sample.vision_path is not None and not is_image_file(sample.vision_path)
        return Path(str(sample.vision_path)) if video and sample.condition_video_keep == "first" else None
    path = folder / stated if isinstance(stated, str) else None
    if path is None or not path.is_file():
        raise UserError(f"{sample.name}: extra.real must be a video file, found {path or repr(stated)}")
    return path
