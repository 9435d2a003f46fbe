"""`PosteriorVAE`: a diffusers VAE that encodes clips to mean and log variance; each epoch samples new latents."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config.declare.ranges import PositiveFactor
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import SubstituteComponent
from worldsmith.models.real_values import in_simulation, without_values
from worldsmith.models.video_vae.frozen import FrozenVAE, weights_digest
from worldsmith.models.video_vae.vae_folder import FLUX, find_vae_folder, require_vae_folder, vae_substitute

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class PosteriorVAE(FrozenVAE):
    """Frozen VAE that encodes a clip to the mean and log variance of its latents.

    Raw latents are sampled from this normal distribution; normalized latents are (raw - `shift_factor`) ·
    `scaling_factor`. The latent cache stores mean and log variance, so that each epoch can sample other latents.

    Raises:
        FileNotFoundError: If no VAE with that path or name exists.
        ValueError: If the folder contains another class.
    """

    recipe: ClassVar[str]
    """Version of the encoding in the fingerprint; to be changed when the same weights would give other results."""
    of_images: ClassVar[bool] = False
    """Whether the VAE only supports single images, not videos."""

    class Config(FrozenVAE.Config):
        class_name: ClassVar[str]
        """Name of the VAE's class in diffusers."""
        returns_posterior: ClassVar[bool] = True

        scaling_factor: PositiveFactor | None = None
        """Scaling factor of the latents; None: the value in the VAE's config."""

        def check_files(self) -> None:
            """Raises FileNotFoundError or ValueError if `vae_path` does not name a VAE; downloads no files."""
            require_vae_folder(self.vae_path, self.class_name)

        def find(self) -> Path:
            """Returns the folder of the weights; downloads it if needed.

            Raises:
                FileNotFoundError: If no VAE with that path or name exists.
                ValueError: If the folder contains another class.
            """
            return find_vae_folder(self.vae_path, self.class_name)

    config: Config

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        config.check()
        self.source = config.find()
        super().__init__(config, device=device)

    def load(self) -> Any:
        if in_simulation():
            make = partial(self.library_class.from_config, self.library_settings(), trust_remote_code=False)
            return without_values(make, self.dtype, self.device)
        return load_from_folder(self.library_class, self.source, torch_dtype=self.dtype).to(self.device)

    def library_settings(self) -> dict[str, Any]:
        """Returns the config of the VAE as diffusers reads it from the folder of the weights."""
        return self.library_class.load_config(str(self.source), local_files_only=True)

    @property
    def library_class(self) -> Any:
        import diffusers

        return getattr(diffusers, self.config.class_name)

    @property
    def channels(self) -> int:
        """Number of latent channels."""
        return int(self.settings["latent_channels"])

    @property
    def scaling_factor(self) -> float:
        return self.config.scaling_factor or float(self.settings["scaling_factor"])

    @property
    def shift_factor(self) -> float:
        return float(self.settings["shift_factor"] or 0.0)

    @property
    def library_model(self) -> Any:
        """Diffusers VAE for an exported pipeline; its `scaling_factor` is set in place to that of this object."""
        self.model.register_to_config(scaling_factor=self.scaling_factor)
        return self.model

    def encode(self, video: Tensor) -> Tensor:
        """Encodes a clip to the mean and log variance of its latents.

        Args:
            video: Pixel values from 0 to 255, [3, T, H, W]; scaled to value/127.5 - 1.

        Returns:
            Mean and log variance, float32 [2C, t, h, w].
        """
        import torch

        self.idle = 0
        pixels = video.to(self.device).float().div(127.5).sub(1.0).to(self.dtype)[None]
        with torch.no_grad():
            if self.of_images:
                moments: Tensor = self.model.encode(pixels[:, :, 0]).latent_dist.parameters[0][:, None]
            else:
                moments = self.model.encode(pixels).latent_dist.parameters[0]
        return moments.float()

    def decode(self, latents: Tensor) -> Tensor:
        """Decodes normalized latents [C, t, h, w] to a uint8 video [3, T, H, W]."""
        import torch

        self.idle = 0
        raw = self.denormalize(latents.to(self.device)).to(self.dtype)
        with torch.no_grad():
            pixels = self.decode_raw(raw)
        return pixels.float().add(1.0).mul(127.5).round().clamp(0, 255).to(torch.uint8)

    def latents(self, moments: Tensor, noise: Tensor) -> Tensor:
        """Samples normalized latents from the posterior.

        Args:
            moments: Mean and log variance [2C, t, h, w], from `encode`.
            noise: Standard normal noise [C, t, h, w].

        Returns:
            Latents [C, t, h, w].
        """
        mean, log_variance = moments.chunk(2)
        # The bounds are those of diffusers' DiagonalGaussianDistribution.
        sampled = mean + (0.5 * log_variance.clamp(-30.0, 20.0)).exp() * noise
        return self.normalize(sampled)

    def normalize(self, raw: Tensor) -> Tensor:
        """Converts raw latents [C, t, h, w] of the VAE to normalized latents, the network's input."""
        return (raw - self.shift_factor) * self.scaling_factor

    def denormalize(self, latents: Tensor) -> Tensor:
        """Converts normalized latents [C, t, h, w] back to raw latents of the VAE; inverse of `normalize`."""
        return latents / self.scaling_factor + self.shift_factor

    def decode_raw(self, raw: Tensor) -> Tensor:
        """Decodes unnormalized latents [C, t, h, w] to pixels [3, T, H, W] from -1 to 1."""
        if self.of_images:
            return self.model.decode(raw.transpose(0, 1)).sample.transpose(0, 1)
        return self.model.decode(raw[None]).sample[0]

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 hash of what determines the result of `encode` except the clip: weights, precision and config.

        The `scaling_factor` of the config is not included.
        """
        return weights_digest(self.model, extra=(self.recipe, self.config.precision), ignored=("scaling_factor",))


class ImageVAE(PosteriorVAE):
    """VAE for images (diffusers' `AutoencoderKL`); an image is a clip of one frame."""

    recipe = "image-moments-1"
    of_images = True

    class Config(PosteriorVAE.Config):
        class_name: ClassVar[str] = "AutoencoderKL"

        def substitute(self) -> SubstituteComponent:
            """Returns the config of FLUX.1's VAE, which a simulation uses if `vae_path` is not available."""
            return vae_substitute("FLUX.1", FLUX)
