"""`WanDefaults`: how videos are generated when nobody says anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from worldsmith.families.diffusers_pipeline.defaults import PipelineDefaults, make_unipc_scheduler


@dataclass(frozen=True, slots=True)
class WanDefaults(PipelineDefaults):
    """The published values of Wan 2.1 at tier 480."""

    refused: ClassVar[Mapping[str, str]] = {
        "dynamic_guidance": "its guidance has one scale at each expert",
        "strength": "it is not trained to make a video anew from another one",
    }

    shift: float | None = 3.0
    steps: int = 50
    guidance: float = 5.0
    guidance_2: float | None = None
    """Scale of the expert for low noise; None: the same."""

    def make_scheduler(self, shift: float | None = None) -> Any:
        """That of the published pipelines, with this shift, or that of the training."""
        return make_unipc_scheduler(shift or self.shift or 1.0)
