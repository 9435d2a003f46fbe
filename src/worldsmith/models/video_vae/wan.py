"""`WanVAE`: the Wan 2.2 video VAE, between uint8 clips and normalised latents (16× in space, 4× in time)."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from worldsmith.config import Configurable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CLASS_NAME = "AutoencoderKLWan"
WEIGHTS = ("diffusion_pytorch_model*.safetensors", "diffusion_pytorch_model*.safetensors.index.json")
RECIPE = "wan-mean-latents-1"  # part of the fingerprint: raise it when the same weights would give other latents


class WanVAE(Configurable):
    """Encodes and decodes one clip at a time, so that its bits never depend on what else is in a batch.

    The whole VAE (weights and arithmetic) runs in `precision`; the latent is the posterior's mean, normalised with the
    channel means and deviations of the VAE's config. Weights are frozen.

    Raises:
        FileNotFoundError: there is no VAE in the folder.
        ValueError: the path is a `.pth` file, or the folder holds another class or statistics of the wrong length.
    """

    class Config(Configurable.Config):
        vae_path: str = "${asset:tiny_vae}"
        """Folder of a diffusers AutoencoderKLWan: config.json and safetensors weights."""
        precision: Literal["bfloat16", "float32"] = "bfloat16"
        """Type of weights and arithmetic; latents come out as float32 either way."""

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        self.config = config
        self.folder = Path(config.vae_path)
        self.settings = read_settings(self.folder)

        import torch
        from diffusers import AutoencoderKLWan

        self.device = torch.device(device)
        self.dtype = getattr(torch, config.precision)
        self.model = AutoencoderKLWan.from_pretrained(str(self.folder), torch_dtype=self.dtype, local_files_only=True)
        self.model.to(self.device).eval().requires_grad_(False)
        shape = (1, -1, 1, 1, 1)
        statistics = {"dtype": self.dtype, "device": self.device}
        self.mean = torch.tensor(self.settings["latents_mean"], **statistics).view(shape)
        self.inverse_std = (1.0 / torch.tensor(self.settings["latents_std"], **statistics)).view(shape)

    @property
    def channels(self) -> int:
        """Latent channels."""
        return self.settings["z_dim"]

    @property
    def spatial_factor(self) -> int:
        """Pixels per latent cell, in height and in width."""
        return self.settings["scale_factor_spatial"]

    @property
    def temporal_factor(self) -> int:
        """Frames per latent frame after the first, which stands for one frame."""
        return self.settings["scale_factor_temporal"]

    def encode(self, video: Tensor) -> Tensor:
        """uint8 [3, T, H, W] to float32 latents [C, (T-1)/4+1, H/16, W/16]; pixels enter as value/127.5 - 1.

        Raises ValueError for another type or form, T other than 4k+1, or sides that are no multiple of 16.
        """
        import torch

        self.check_video(video)
        pixels = video.to(self.device, torch.float32).div(127.5).sub(1.0).to(self.dtype)
        with torch.no_grad():
            means = self.model.encode(pixels[None]).latent_dist.mode()
            return ((means - self.mean) * self.inverse_std)[0].float()

    def decode(self, latents: Tensor) -> Tensor:
        """Normalised latents [C, t, h, w] to uint8 [3, 4(t-1)+1, 16h, 16w]. Raises ValueError for another form."""
        import torch

        if latents.ndim != 4 or latents.shape[0] != self.channels:
            raise ValueError(f"expected latents [{self.channels}, t, h, w], found {list(latents.shape)}")
        with torch.no_grad():
            raw = latents.to(self.device, self.dtype)[None] / self.inverse_std + self.mean
            pixels = self.model.decode(raw).sample[0].float()
        return pixels.add(1.0).mul(127.5).round().clamp(0, 255).to(torch.uint8)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over everything that decides the latents: config, weights and precision."""
        digest = hashlib.sha256(f"{RECIPE}\n{self.config.precision}\n".encode())
        for path in [self.folder / "config.json", *weight_files(self.folder)]:
            digest.update(f"{path.name}\n".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def check_video(self, video: Tensor) -> None:
        """Raises ValueError for a clip that cannot be encoded."""
        import torch

        if video.dtype != torch.uint8 or video.ndim != 4 or video.shape[0] != 3:
            raise ValueError(f"expected a uint8 video [3, T, H, W], found {video.dtype} {list(video.shape)}")
        _, frames, height, width = video.shape
        if frames % self.temporal_factor != 1:
            raise ValueError(f"the VAE takes 4k+1 frames, found {frames}; cut to {(frames - 1) // 4 * 4 + 1}")
        if height % self.spatial_factor or width % self.spatial_factor:
            raise ValueError(f"height and width must be multiples of {self.spatial_factor}, found {height}x{width}")


def read_settings(folder: Path) -> dict:
    """The VAE's config.json, checked before anything heavy is loaded."""
    if folder.suffix in (".pth", ".pt", ".ckpt") or folder.is_file():
        raise ValueError(
            f"vae_path: '{folder}' is a single weights file, which is not read here; give a diffusers folder with "
            "config.json and safetensors, such as the subfolder 'vae' of Wan-AI/Wan2.2-TI2V-5B-Diffusers"
        )
    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(
            f"vae_path: no config.json in '{folder}'; give the folder of a diffusers {CLASS_NAME} "
            "(in a pipeline export it is the subfolder 'vae')"
        )
    settings = json.loads(config.read_text())
    found = settings.get("_class_name")
    if found != CLASS_NAME:
        raise ValueError(f"vae_path: '{folder}' holds a {found or 'config without _class_name'}, expected {CLASS_NAME}")
    for name in ("latents_mean", "latents_std"):
        length, channels = len(settings.get(name, [])), settings["z_dim"]
        if length != channels:
            raise ValueError(f"vae_path: '{config}' has {length} values in {name}, expected z_dim = {channels}")
    if not weight_files(folder):
        raise FileNotFoundError(f"vae_path: '{folder}' has a config.json but no diffusion_pytorch_model*.safetensors")
    return settings


def weight_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
