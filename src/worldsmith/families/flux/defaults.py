"""`FluxDefaults`: how images are generated when nobody says anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from worldsmith.families.diffusers_pipeline.defaults import PipelineDefaults

ALONE = "an image is made from its text alone"


@dataclass(frozen=True, slots=True)
class FluxDefaults(PipelineDefaults):
    """As FLUX.1-dev is sampled: more tokens of an image shift its schedule further, unless `shift` says how far."""

    refused: ClassVar[Mapping[str, str]] = {
        "scheduler": "sampling is Euler's method",
        "dynamic_guidance": "the network is told the same scale at every step",
        "strength": ALONE,
        "condition_frame_indexes_vision": ALONE,
        "condition_video_keep": ALONE,
    }

    shift_of_size: ClassVar[bool] = True

    num_frames: int | None = 1
    steps: int = 28
    guidance: float = 3.5
    base_shift: float = 0.5
    """ln(shift) at `base_image_seq_len` tokens; from there it goes in a line to `max_shift`."""
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096

    def log_shift(self, tokens: int) -> float:
        """ln(shift) for an image of so many tokens."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return tokens * slope + (self.base_shift - slope * self.base_image_seq_len)

    def make_scheduler(self, shift: float | None) -> Any:
        """The scheduler of diffusers with a shift, or with that of each size of image."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        return FlowMatchEulerDiscreteScheduler(
            shift=3.0 if shift is None else shift,  # 3.0: as published, and without effect
            use_dynamic_shifting=shift is None,
            base_shift=self.base_shift,
            max_shift=self.max_shift,
            base_image_seq_len=self.base_image_seq_len,
            max_image_seq_len=self.max_image_seq_len,
        )
