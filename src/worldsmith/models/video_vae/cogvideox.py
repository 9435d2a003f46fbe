"""`CogVideoXVAE`: diffusers' video VAE of CogVideoX (8× in space, 4× in time), from uint8 clips to moments."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import PositiveFactor
from worldsmith.files.json_file import read_json_object
from worldsmith.models.model_files import find_layout, look_for_layout
from worldsmith.models.video_vae.kept_memory import keep_freed_memory
from worldsmith.models.video_vae.weights_digest import weights_digest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CLASS_NAME = "AutoencoderKLCogVideoX"
SUBFOLDER, WEIGHTS = "vae", "diffusion_pytorch_model*.safetensors"
PLACES = ((f"{SUBFOLDER}/config.json", f"{SUBFOLDER}/{WEIGHTS}*"), ("config.json", f"{WEIGHTS}*"))
TEMPORAL_FACTOR, SPATIAL_FACTOR = 4, 8
RECIPE = "cogvideox-moments-1"
"""Part of the fingerprint: raise it when the same weights would give other moments."""


class CogVideoXVAE(Configurable):
    """Encodes one clip at a time into its posterior's mean and log variance; weights are frozen.

    Latents are drawn from the moments and multiplied by `scaling_factor`: what a cache keeps serves every pass.

    Raises:
        FileNotFoundError: there is no VAE under that path or name.
        ValueError: the folder holds another class.
    """

    class Config(Configurable.Config):
        keeps_moments: ClassVar[bool] = True
        """Whether what is encoded are mean and log variance, and not latents."""

        vae_path: str = ""
        """A diffusers AutoencoderKLCogVideoX folder, a pipeline's folder, or a repository of the hub that holds one."""
        scaling_factor: PositiveFactor | None = None
        """What latents are multiplied by; None: what the VAE's config says (1.15258426 for 2B, 0.7 for 5B)."""
        precision: Literal["bfloat16", "float32"] = "bfloat16"
        """Type of weights and arithmetic; moments come out as float32 either way."""

        def check_files(self) -> None:
            """Raises FileNotFoundError or ValueError when vae_path names no VAE; downloads none."""
            found = look_for_layout(self.vae_path, PLACES, field="model.config.tokenizer.vae_path")
            if found is not None:
                inside(found)

    config: Config

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        config.check()
        self.config = config
        folder = inside(find_layout(config.vae_path, PLACES, field="model.config.tokenizer.vae_path"))

        import diffusers
        import torch

        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        library: Any = diffusers  # its classes carry no types
        self.model = library.AutoencoderKLCogVideoX.from_pretrained(
            str(folder), torch_dtype=getattr(torch, config.precision), local_files_only=True
        )
        self.model.to(self.device).eval().requires_grad_(False)

    @property
    def channels(self) -> int:
        """Latent channels."""
        return int(self.model.config.latent_channels)

    @property
    def scaling_factor(self) -> float:
        return self.config.scaling_factor or float(self.model.config.scaling_factor)

    def encode(self, video: Tensor) -> Tensor:
        """uint8 [3, T, H, W], T = 4k+1, to float32 moments [2C, k+1, H/8, W/8]; pixels enter as value/127.5 - 1."""
        import torch

        pixels = video.to(self.device).float().div(127.5).sub(1.0).to(self.model.dtype)[None]
        with torch.no_grad():
            moments: Tensor = self.model.encode(pixels).latent_dist.parameters[0]
        return moments.float()

    def latents(self, moments: Tensor, noise: Tensor) -> Tensor:
        """A draw from the posterior, scaled: [C, t, h, w] of moments [2C, t, h, w] and standard normal noise."""
        mean, log_variance = moments.chunk(2)
        # The bounds are those of diffusers' DiagonalGaussianDistribution.
        return (mean + (0.5 * log_variance.clamp(-30.0, 20.0)).exp() * noise) * self.scaling_factor

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over everything that decides the moments: config, weights and precision; not the scale."""
        return weights_digest(self.model, about=(RECIPE, self.config.precision), ignored=("scaling_factor",))


def inside(path: Path) -> Path:
    """Within a folder the VAE: the folder itself, or a pipeline's subfolder. Raises ValueError for neither."""
    for folder in (path, path / SUBFOLDER):
        config = folder / "config.json"
        if config.is_file() and read_json_object(config).get("_class_name") == CLASS_NAME:
            return folder
    raise ValueError(f"model.config.tokenizer.vae_path: '{path}' holds no {CLASS_NAME} (config.json says what it is)")
