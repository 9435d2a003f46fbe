"""`LTXVideoTask`: trains LTX-Video with rectified flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.families.diffusers_pipeline.task import PipelineTask
from worldsmith.objectives.rectified_flow import RectifiedFlow


class LTXVideoTask(PipelineTask):
    """Training task of LTX-Video: rectified flow on captioned clips."""

    objective_class = RectifiedFlow

    def extra_inputs(self, batch: Sequence[VideoSample], latents: Sequence[Any], *, seed: int) -> dict[str, Any]:
        return {"fps": [sample.fps for sample in batch]}
