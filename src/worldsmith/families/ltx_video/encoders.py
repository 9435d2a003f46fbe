"""The video VAE of LTX-Video, and its text encoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config.declare.ranges import Count
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.models.model_files import PublishedPart
from worldsmith.models.video_vae.moments import MomentsVAE
from worldsmith.models.video_vae.published import vae_part

if TYPE_CHECKING:
    from torch import Tensor

TEMPORAL_FACTOR, SPATIAL_FACTOR = 8, 32


class LTXVideoVAE(MomentsVAE):
    """diffusers' `AutoencoderKLLTXVideo`: clips of 8k+1 frames become k+1 latent frames, 32x32 px a latent cell.

    Latents are normalized per channel. A decoder that is conditioned on a timestep gets 0, without added noise: the
    default of diffusers' pipeline.
    """

    recipe = "ltx-video-moments-1"

    class Config(MomentsVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKLLTXVideo"

        def published(self) -> PublishedPart:
            """The released VAE, for plans."""
            return vae_part("LTX-Video", {"_class_name": self.class_name})

    statistics: tuple[Tensor, Tensor]
    """Mean and standard deviation of each latent channel; they stay when the weights are released."""

    def load(self) -> Any:
        model = super().load()
        self.statistics = model.latents_mean.clone(), model.latents_std.clone()
        return model

    def normalize(self, raw: Tensor) -> Tensor:
        mean, std = (values.to(raw.device, raw.dtype).view(-1, 1, 1, 1) for values in self.statistics)
        return (raw - mean) * self.scaling_factor / std

    def denormalize(self, latents: Tensor) -> Tensor:
        mean, std = (values.to(latents.device, latents.dtype).view(-1, 1, 1, 1) for values in self.statistics)
        return latents * std / self.scaling_factor + mean

    def decode_raw(self, raw: Tensor) -> Tensor:
        timestep = raw.new_zeros(1) if self.settings["timestep_conditioning"] else None
        video: Tensor = self.model.decode(raw[None], timestep).sample[0]
        return video


class LTXTextEncoder(T5TextEncoder):
    """T5, which reads the padding as well; states behind the text become zeros, which the network masks out."""

    class Config(T5TextEncoder.Config):
        max_length: Count = 128
        """Tokens of every caption, end and padding included."""
        dropped_captions: Literal["zeros", "encoded"] = "encoded"
        """What a caption becomes that was emptied for guidance: zeros, or what the encoder makes of the empty text."""

    def encode(self, sample: Sequence[int]) -> Tensor:
        states = super().encode(sample)
        states[self.text_length(sample) or 1 :] = 0
        return states

    @cached_property
    def fingerprint(self) -> str:
        return f"{super().fingerprint} zeros behind the text"
