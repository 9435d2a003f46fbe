"""`Cosmos3Defaults`: how videos are generated when nobody says anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from worldsmith.models.video_model import GenerationDefaults

IMAGE_STEPS, IMAGE_GUIDANCE, IMAGE_FPS = 50, 4.0, 24.0
"""Published for a single image."""


@dataclass(frozen=True, slots=True)
class Cosmos3Defaults(GenerationDefaults):
    refused: ClassVar[Mapping[str, str]] = {
        "scheduler": "sampling is UniPC",
        "dynamic_guidance": "sampling is UniPC with the same guidance at every step",
        "strength": "frames that are given stay as they are (condition_frame_indexes_vision says how many)",
    }

    def of_image(self) -> GenerationDefaults:
        return replace(
            self,
            steps=IMAGE_STEPS,
            guidance=IMAGE_GUIDANCE,
            shift=self.shift if self.image_shift is None else self.image_shift,
            fps=IMAGE_FPS if self.fps is None else self.fps,
        )
