"""`WanTask`: trains Wan with rectified flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from worldsmith.config import WrongValueError
from worldsmith.families.diffusers_pipeline.task import PipelineInputs, PipelineTask
from worldsmith.families.wan.model import WanGenerator
from worldsmith.objectives.rectified_flow import RectifiedFlow

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_sample import FirstFrames, VideoSample


class WanTask(PipelineTask):
    """Training task of Wan: text- and image-to-video; an expert is trained only on the noise levels it is used for."""

    objective_class = RectifiedFlow

    model: WanGenerator

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.objective.within = self.model.config.noise_levels

    @classmethod
    def check_data(cls, section: str, data: Any, model: Any) -> None:
        clean = data.dataset.conditioning_config
        if model.expand_timesteps:  # it is trained with the first frame as a clean latent frame
            data = replace(data, dataset=replace(data.dataset, conditioning_config={}))
        super().check_data(section, data, model)
        if model.expand_timesteps and any(int(frames) > 1 and weight for frames, weight in clean.items()):
            why = "the pipeline supports conditioning only on the first latent frame"
            raise WrongValueError({f"{section}.dataset.conditioning_config": clean}, why=why, remedy="write 0 and 1")

    @property
    def first_frames(self) -> FirstFrames:
        network = self.model.config.network
        return "none" if not network.takes_image else "opening and pixels" if network.image_dim else "opening"

    def encode_part(self, part: VideoSample) -> Tensor:
        if part.video is None or part.video.shape[1] == part.num_frames:
            return super().encode_part(part)
        return self.cached_latents(part, partial(self.model.vae.encode_first_frame, frames=part.num_frames))

    def extra_inputs(self, batch: Sequence[VideoSample], inputs: PipelineInputs) -> dict[str, Any]:
        import torch

        if not self.model.config.network.takes_image:
            return {"given": [sample.condition_frames for sample in batch]}
        images = self.images(batch, inputs)
        frames = [image.video for image in images if image.video is not None]
        states = self.model.image_encoder.states(frames) if self.model.config.network.image_dim else None
        openings = [self.model.with_first_frame_mask(opening) for opening in self.latents(images)]
        return {"image": torch.stack(openings), "image_states": states}
