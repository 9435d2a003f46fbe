"""The image that a network of image to video reads beside the noisy video."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Factor, PositiveFactor, Share

if TYPE_CHECKING:
    from torch import Tensor


class ImageConfig(Config):
    """A clip's first frame, encoded alone; its latents follow the noisy video's on the channels."""

    noise: bool = True
    """Whether pixels get noise before they are encoded, drawn anew in every step. Without, the cache keeps latents."""
    noise_log_mean: float = -3.0
    """Mean of the logarithm of the noise's standard deviation, where pixels go from -1 to 1."""
    noise_log_std: Factor = 0.5
    """Standard deviation of that logarithm, which each sample draws."""
    dropout: Share = 0.05
    """Probability that a sample is trained without its image, which is zeros then."""
    repeat: bool = False
    """Whether the image stands beside every latent frame; otherwise beside the first, and zeros beside the others."""
    latent_scale: PositiveFactor | None = None
    """What its latents are multiplied by; None: as diffusers' pipeline does, by the VAE's scaling_factor, or by its
    inverse where the VAE's config says invert_scale_latents (CogVideoX 1.5)."""

    def check(self) -> None:
        """Raises WrongValueError for a noise that is described and turned off."""
        idle = [
            name for name in ("noise_log_mean", "noise_log_std") if getattr(self, name) != getattr(ImageConfig, name)
        ]
        if idle and not self.noise:
            raise wrong(self, "noise", *idle, why="there is no noise to describe", remedy="leave these settings out")

    def place(self, image: Tensor, frames: int) -> Tensor:
        """Latents [n, C, 1, h, w] over so many frames: [n, C, frames, h, w]."""
        from torch.nn.functional import pad

        if self.repeat:
            return image.expand(-1, -1, frames, -1, -1)
        return pad(image, (0, 0, 0, 0, 0, frames - 1))
