"""`CogVideoXVAE`: diffusers' video VAE of CogVideoX (8× in space, 4× in time)."""

from __future__ import annotations

from typing import ClassVar

from worldsmith.models.video_vae.moments import MomentsVAE

TEMPORAL_FACTOR, SPATIAL_FACTOR = 4, 8


class CogVideoXVAE(MomentsVAE):
    """Clips of 4k+1 frames become k+1 latent frames. The published scale is 1.15258426 for 2B, 0.7 for 5B."""

    recipe = "cogvideox-moments-1"

    class Config(MomentsVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKLCogVideoX"
