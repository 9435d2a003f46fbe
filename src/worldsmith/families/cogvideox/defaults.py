"""`CogVideoXDefaults`: how videos are generated when nobody says anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from worldsmith.config import Config
from worldsmith.config.declare.ranges import Count, Factor, Range
from worldsmith.families.diffusers_pipeline.defaults import PipelineDefaults
from worldsmith.models.video_model import NOISE_LEVELS, DynamicGuidance

KEPT = "a video is made anew from another one (strength says how much of it), and an image is its first frame"
SCHEDULERS = {"ddim": "CogVideoXDDIMScheduler", "dpm": "CogVideoXDPMScheduler"}
"""Classes of diffusers."""


class SamplingConfig(Config):
    """How videos are made where nothing else is asked; an exported pipeline has the scheduler."""

    scheduler: Literal["ddim", "dpm"] | None = None
    """The solver; None: dpm for a network with rotary positions, as for CogVideoX-5B, else ddim."""
    steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] = 50
    """Its steps."""
    guidance: Factor = 6.0
    """Scale of classifier-free guidance; 1 turns it off."""
    dynamic_guidance: DynamicGuidance | None = None
    """How the scale changes: off, by_timestep (as published: it swings between 1 and 1 + guidance), or by_step (it
    grows from 1 to there); None: by_timestep with dpm, else off."""
    guidance_exponent: Count = 5
    """Of the scale that changes."""


@dataclass(frozen=True, slots=True)
class CogVideoXDefaults(PipelineDefaults):
    """With the noise table that a model was trained with: fields of `VPrediction.Config`. The defaults are 5B's."""

    refused: ClassVar[Mapping[str, str]] = {
        "shift": "the noise table of the training says how noisy each step is",
        "condition_frame_indexes_vision": KEPT,
        "condition_video_keep": KEPT,
    }
    schedulers: ClassVar[tuple[str, ...]] = tuple(SCHEDULERS)

    steps: int = 50
    scheduler: str = "dpm"
    """ddim, or dpm (DPM-Solver++ of second order, which draws noise at each step)."""
    dynamic_guidance: str = "off"
    """off, by_timestep or by_step."""
    guidance_exponent: int = 5
    num_timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    shift_scale: float = 1.0
    zero_terminal_snr: bool = True
    timestep_spacing: str = "trailing"

    def scheduler_settings(self) -> dict[str, Any]:
        """Those of a scheduler of diffusers with this noise table."""
        return {
            "num_train_timesteps": self.num_timesteps,
            "beta_start": self.beta_start,
            "beta_end": self.beta_end,
            "beta_schedule": "scaled_linear",
            "prediction_type": "v_prediction",
            "rescale_betas_zero_snr": self.zero_terminal_snr,
            "snr_shift_scale": self.shift_scale,
            "timestep_spacing": self.timestep_spacing,
            "clip_sample": False,
            "set_alpha_to_one": True,
            "steps_offset": 0,
        }

    def make_scheduler(self, name: str) -> Any:
        """The scheduler of diffusers."""
        import diffusers

        return getattr(diffusers, SCHEDULERS[name])(**self.scheduler_settings())
