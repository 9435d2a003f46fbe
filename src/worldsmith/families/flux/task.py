"""FLUX learns the velocity of rectified flow, from images."""

from __future__ import annotations

from typing import Any

from worldsmith.config import WrongValueError
from worldsmith.families.diffusers_pipeline.task import PipelineTask
from worldsmith.objectives.rectified_flow import RectifiedFlow


class FluxTask(PipelineTask):
    """Learns the velocity of rectified flow from images; a clip contributes one frame."""

    objective_class = RectifiedFlow

    @classmethod
    def check_data(cls, section: str, data: Any, model: Any) -> None:
        super().check_data(section, data, model)
        if data.dataset.num_video_frames != 1:
            given = {f"{section}.dataset.num_video_frames": data.dataset.num_video_frames}
            raise WrongValueError(given, why="this network generates images", remedy="write 1")
