"""`FluxDefaults`: how images are generated unless a setting says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from worldsmith.families.diffusers_pipeline.flow_match import FlowMatchDefaults


@dataclass(frozen=True, slots=True)
class FluxDefaults(FlowMatchDefaults):
    """As FLUX.1-dev is sampled."""

    num_frames: int | None = 1
    steps: int = 28
    guidance: float = 3.5
