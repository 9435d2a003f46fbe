"""`FlowMatchDefaults`: sampling with diffusers' `FlowMatchEulerDiscreteScheduler`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from worldsmith.config.errors import UserError
from worldsmith.families.diffusers_pipeline.defaults import PipelineDefaults
from worldsmith.files.json_file import read_json_object

SCHEDULER = "FlowMatchEulerDiscreteScheduler"
FROM_TEXT = "this model generates from a text alone"
DYNAMIC = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "shift_terminal")


@dataclass(frozen=True, slots=True)
class FlowMatchDefaults(PipelineDefaults):
    """More tokens of a sample shift its schedule further, unless `shift` is given."""

    refused: ClassVar[Mapping[str, str]] = {
        "scheduler": "sampling is Euler's method",
        "dynamic_guidance": "its guidance scale is the same at every step",
        "strength": FROM_TEXT,
        "condition_frame_indexes_vision": FROM_TEXT,
        "condition_video_keep": FROM_TEXT,
    }
    shift_of_size: ClassVar[bool] = True

    base_shift: float = 0.5
    """ln(shift) at `base_image_seq_len` tokens; from there it grows linearly to `max_shift`."""
    max_shift: float = 1.15
    """ln(shift) at `max_image_seq_len` tokens."""
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    shift_terminal: float | None = None
    """Last noise level of the schedule, to which the others are stretched; None: they are not."""

    def log_shift(self, tokens: int) -> float:
        """ln(shift) for a sample of that many tokens."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return tokens * slope + (self.base_shift - slope * self.base_image_seq_len)

    def make_scheduler(self, shift: float | None) -> Any:
        """The scheduler of diffusers with a fixed shift, or (None) with the shift of each sample's size."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        return FlowMatchEulerDiscreteScheduler(
            shift=3.0 if shift is None else shift,  # 3.0: as released, and without effect
            use_dynamic_shifting=shift is None,
            **{name: getattr(self, name) for name in DYNAMIC},
        )


def read_schedule(folder: Path) -> dict[str, Any]:
    """Fields of `FlowMatchDefaults` that a pipeline's scheduler states. Raises UserError for another scheduler."""
    file = folder / "scheduler" / "scheduler_config.json"
    if not file.is_file():
        return {}
    stated: Mapping[str, Any] = read_json_object(file)
    if stated.get("_class_name") != SCHEDULER:
        raise UserError(f"{file}: expected {SCHEDULER}, found {stated.get('_class_name')}")
    if not stated.get("use_dynamic_shifting", False):
        return {"shift": float(stated.get("shift", 1.0)), "shift_terminal": stated.get("shift_terminal")}
    return {"shift": None, **{name: stated[name] for name in DYNAMIC if name in stated}}
