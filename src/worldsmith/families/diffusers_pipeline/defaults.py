"""`PipelineDefaults`: what a pipeline of diffusers generates with."""

from __future__ import annotations

from dataclasses import dataclass

from worldsmith.models.video_model import GenerationDefaults


@dataclass(frozen=True, slots=True)
class PipelineDefaults(GenerationDefaults):
    captions_as_given: bool = True
    """Whether captions were read as they stand, as those of the published weights; ours end with a period."""

    @property
    def ends_captions(self) -> bool:
        return not self.captions_as_given
