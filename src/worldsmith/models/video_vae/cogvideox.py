"""`CogVideoXVAE`: diffusers' video VAE of CogVideoX (8× in space, 4× in time)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from worldsmith.models.video_vae.moments import MomentsVAE

if TYPE_CHECKING:
    from torch import Tensor

TEMPORAL_FACTOR, SPATIAL_FACTOR = 4, 8


class CogVideoXVAE(MomentsVAE):
    """Clips of 4k+1 frames become k+1 latent frames. The published scale is 1.15258426 for 2B, 0.7 for 5B."""

    recipe = "cogvideox-moments-1"

    class Config(MomentsVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKLCogVideoX"

    @property
    def image_scaling_factor(self) -> float:
        """What diffusers' pipeline multiplies the latents of a conditioning image by."""
        return 1 / self.scaling_factor if self.settings.get("invert_scale_latents") else self.scaling_factor

    def image_latents(self, moments: Tensor, noise: Tensor, scale: float | None = None) -> Tensor:
        """Those of a conditioning image, times `scale`; None: image_scaling_factor."""
        return self.latents(moments, noise) * ((scale or self.image_scaling_factor) / self.scaling_factor)
