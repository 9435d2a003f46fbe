"""`ClipDataset`: base class of the datasets whose samples are `VideoSample`s."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from worldsmith.config import Configurable
from worldsmith.data.stream.sample_maker import StreamDataset

if TYPE_CHECKING:
    from worldsmith.data.clips.video_sample import RobotActions

ASSUMED_FPS = 24.0
"""Assumed frame rate, if the dataset has none."""


class ClipDataset(Configurable, StreamDataset):
    """Base class of datasets of clips: captioned windows of videos, windows of robot episodes, or a mix of them."""

    class Config(Configurable.Config):
        def check_files(self) -> None:
            """Raises DataError if the dataset cannot be read; opens no video."""
            self.build()

        @abstractmethod
        def resolutions(self) -> list[str]:
            """Returns the resolution of each dataset: buckets such as "256", or sizes such as "720x480"."""

        @abstractmethod
        def assumed_clip(self) -> tuple[str, int, float, RobotActions | None]:
            """Returns (resolution, frames, fps, robot actions) of a dummy clip for plans; opens no file."""
