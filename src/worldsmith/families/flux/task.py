"""`FluxTask`: trains FLUX.1 with rectified flow on images."""

from __future__ import annotations

from typing import Any

from worldsmith.config import WrongValueError
from worldsmith.families.diffusers_pipeline.task import PipelineTask
from worldsmith.objectives.rectified_flow import RectifiedFlow


class FluxTask(PipelineTask):
    """Training task of FLUX.1: rectified flow on images, which are clips of one frame."""

    objective_class = RectifiedFlow

    @classmethod
    def check_data(cls, section: str, data: Any, model: Any) -> None:
        super().check_data(section, data, model)
        if data.dataset.num_video_frames != 1:
            given = {f"{section}.dataset.num_video_frames": data.dataset.num_video_frames}
            raise WrongValueError(given, why="this network generates images", remedy="write 1")
