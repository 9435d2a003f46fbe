"""LTX-Video learns the velocity of rectified flow, from texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.families.diffusers_pipeline.task import PipelineTask
from worldsmith.objectives.rectified_flow import RectifiedFlow


class LTXVideoTask(PipelineTask):
    """Learns the velocity of rectified flow from captioned clips."""

    objective_class = RectifiedFlow

    def extra_inputs(self, batch: Sequence[VideoSample], latents: Sequence[Any], *, seed: int) -> dict[str, Any]:
        return {"fps": [sample.fps for sample in batch]}
