"""`LTXVideoTask`: trains LTX-Video with rectified flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.families.diffusers_pipeline.task import PipelineInputs, PipelineTask
from worldsmith.families.ltx_video.model import FPS
from worldsmith.objectives.rectified_flow import RectifiedFlow


class LTXVideoTask(PipelineTask):
    """Training task of LTX-Video: rectified flow on captioned clips."""

    objective_class = RectifiedFlow

    def prepare_others(self, batch: Sequence[VideoSample], *, seed: int) -> dict[str, Any]:
        import torch

        return {"fps": torch.tensor([sample.fps or FPS for sample in batch])}

    def extra_inputs(self, batch: Sequence[VideoSample], inputs: PipelineInputs) -> dict[str, Any]:
        return inputs.others
