"""`PipelineDefaults`: what a pipeline of diffusers generates with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worldsmith.models.video_model import GenerationDefaults


@dataclass(frozen=True, slots=True)
class PipelineDefaults(GenerationDefaults):
    captions_as_given: bool = True
    """Whether captions were read as they stand, as those of the published weights; ours end with a period."""

    @property
    def ends_captions(self) -> bool:
        return not self.captions_as_given


def make_unipc_scheduler(shift: float) -> Any:
    """The scheduler of the published Wan and Cosmos3 pipelines: UniPC of order 2 over the noise levels of a flow."""
    import diffusers

    library: Any = diffusers  # its classes carry no types
    return library.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
