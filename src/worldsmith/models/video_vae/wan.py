"""`WanVAE`: the video VAE of Wan, from uint8 clips to normalized latents (16× or 8× in space, 4× in time) and back."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Range
from worldsmith.models.model_files import SubstituteComponent
from worldsmith.models.video_vae.frozen import FrozenVAE, weights_digest
from worldsmith.models.video_vae.vae_folder import WAN21, vae_substitute
from worldsmith.models.video_vae.wan_files import (
    PLACES,
    RELEASED,
    SPATIAL_FACTOR,
    TEMPORAL_FACTOR,
    find_vae,
    load_model,
    read_vae_config,
    require_vae,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.models.video_vae.windows import CompiledEncoder

GREY = 127.5
"""Pixel value that the VAE maps to 0."""
RECIPE = "wan-mean-latents-2"
"""Version of the encoding in the fingerprint; to be increased when the same weights would give other latents."""


class WanVAE(FrozenVAE):
    """Frozen video VAE of Wan, which encodes clips of 4k+1 frames to k+1 latent frames.

    - Weights and arithmetic are in `precision`. Latents are the posterior mean, normalized with the channel means and
      standard deviations of the VAE's config.
    - A clip is encoded in temporal tiles; the number of frames per tile depends on the frame size.
    - `compile_encoder` makes encoding faster after a warm-up; the latents then differ in their last bits.

    Raises:
        FileNotFoundError: If no VAE with that path or name exists.
        ValueError: If the folder or file contains another class, other tensors, code, or statistics of the wrong
            length.
    """

    class Config(FrozenVAE.Config):
        returns_posterior: ClassVar[bool] = False

        vae_path: str = "${asset:tiny_vae}"
        """A diffusers AutoencoderKLWan folder, Wan2.2_VAE.pth, or a hub repository (org/name or hf://org/name/vae)."""
        encode_window: Annotated[int, Range(ge=4)] | None = None
        """Number of frames encoded at a time after the first, a multiple of 4. None: 68, 24, 8 or 4, depending on the
        frame size."""

        def check(self) -> None:
            if isinstance(self.encode_window, int) and self.encode_window % 4:
                allowed = f"a multiple of 4, the frames per latent frame, such as {self.encode_window // 4 * 4 + 4}"
                raise wrong(self, "encode_window", allowed=allowed)

        def check_files(self) -> None:
            """Raises FileNotFoundError or ValueError if `vae_path` does not name a VAE; downloads no files."""
            require_vae(self.vae_path, self.cell)

        @property
        def cell(self) -> int:
            """Pixels per latent position, in height and in width."""
            return SPATIAL_FACTOR

        def substitute(self) -> SubstituteComponent:
            """Returns the config of the released VAE, which a simulation uses if `vae_path` is not available."""
            version, settings = ("2.2", RELEASED) if self.cell == SPATIAL_FACTOR else ("2.1", WAN21)
            return vae_substitute(f"Wan {version}", settings, places=PLACES)

    config: Config

    def __init__(self, config: Config, *, device: str | torch.device = "cpu") -> None:
        config.check()
        self.source = find_vae(config.vae_path)
        self.stated = read_vae_config(self.source, config.cell)

        import torch

        if config.precision == "float32":  # on CUDA, convolutions would use TF32, and caches would hold other latents
            torch.backends.cudnn.allow_tf32 = False
        super().__init__(config, device=device)
        shape = (1, -1, 1, 1, 1)
        statistics: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        self.mean = torch.tensor(self.settings["latents_mean"], **statistics).view(shape)
        self.inverse_std = (1.0 / torch.tensor(self.settings["latents_std"], **statistics)).view(shape)
        self.compiled: CompiledEncoder | None = None

    @property
    def channels(self) -> int:
        """Number of latent channels."""
        return int(self.settings["z_dim"])

    def load(self) -> Any:
        return load_model(self.source, self.stated, self.dtype, self.device)

    def release(self) -> bool:
        """Frees the weights, unless the encoder is compiled; returns whether weights were freed.

        A compiled encoder would have to be compiled again.
        """
        return self.compiled is None and super().release()

    def encode(self, video: Tensor) -> Tensor:
        """Encodes a clip to normalized latents.

        Args:
            video: uint8 [3, T, H, W], where T = 4k+1, and H and W are multiples of `config.cell`. Pixels are scaled to
                value/127.5 - 1.

        Returns:
            Latents, float32 [C, (T-1)/4+1, H/cell, W/cell].

        Raises:
            ValueError: For another dtype, shape or size.
        """
        self.check_video(video)
        return self.encode_pixels(video)

    def encode_first_frame(self, image: Tensor, frames: int) -> Tensor:
        """Encodes a clip whose first frame is `image` and whose other frames are gray.

        Args:
            image: uint8 [3, 1, H, W].
            frames: Number of frames of the clip, 4k+1.

        Returns:
            Latents, float32, as from `encode`.
        """
        import torch

        self.check_video(image)
        grey = torch.full((3, frames - 1, *image.shape[2:]), GREY, device=image.device)
        return self.encode_pixels(torch.cat([image.float(), grey], dim=1))

    def encode_pixels(self, video: Tensor) -> Tensor:
        """Encodes a clip like `encode`, but accepts pixel values from 0 to 255 of any dtype and checks nothing."""
        import torch

        from worldsmith.models.video_vae.windows import encode_in_windows, encode_window

        self.idle = 0
        run = self.compiled or encode_window
        with torch.no_grad():
            moments = encode_in_windows(self.model, video, window=self.window(*video.shape[2:]), run=run)
            return ((moments[:, : self.channels] - self.mean) * self.inverse_std)[0].float()

    def decode(self, latents: Tensor) -> Tensor:
        """Decodes normalized latents [C, t, h, w] to a uint8 video [3, 4(t-1)+1, H, W].

        Raises:
            ValueError: If the latents have another number of dimensions or channels.
        """
        import torch

        if latents.ndim != 4 or latents.shape[0] != self.channels:
            raise ValueError(f"expected latents [{self.channels}, t, h, w], found {list(latents.shape)}")
        self.idle = 0
        with torch.no_grad():
            raw = latents.to(self.device, self.dtype)[None] / self.inverse_std + self.mean
            pixels = self.model.decode(raw).sample[0].float()
        return pixels.add(1.0).mul(127.5).round().clamp(0, 255).to(torch.uint8)

    def window(self, height: int, width: int) -> int:
        """Returns the number of frames per temporal tile for frames of `height` × `width` pixels."""
        from worldsmith.models.video_vae.windows import window_frames

        return self.config.encode_window or window_frames(height, width)

    def compile_encoder(self, backend: str = "inductor") -> None:
        """Compiles the encoder with torch.compile, once per input shape, from the next clip on.

        Latents then differ in their last bits, and `fingerprint` changes: do not use a cache that was opened before.

        Args:
            backend: Backend of torch.compile.
        """
        from worldsmith.models.video_vae.windows import CompiledEncoder

        if self.compiled is None:
            self.compiled = CompiledEncoder(backend)

    @property
    def fingerprint(self) -> str:
        """Sha256 hash of everything that determines the latents: config, weights, precision, tiles and compilation.

        It is computed from tensors, not files: a `.pth` file and a diffusers folder with the same weights have
        the same hash.
        """
        parts = [RECIPE, self.config.precision, str(self.config.encode_window), self._weights_digest]
        if self.compiled is not None:
            parts.append(f"compiled by {self.compiled.backend}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @cached_property
    def _weights_digest(self) -> str:
        return weights_digest(self.model)

    def check_video(self, video: Tensor) -> None:
        """Raises ValueError if `encode` does not accept the clip because of its dtype, shape or size."""
        import torch

        if video.dtype != torch.uint8 or video.ndim != 4 or video.shape[0] != 3:
            raise ValueError(f"expected a uint8 video [3, T, H, W], found {video.dtype} {list(video.shape)}")
        _, frames, height, width = video.shape
        if frames % TEMPORAL_FACTOR != 1:
            raise ValueError(f"the VAE needs 4k+1 frames, found {frames}; shorten to {(frames - 1) // 4 * 4 + 1}")
        cell = self.config.cell
        if height % cell or width % cell:
            raise ValueError(f"height and width must be multiples of {cell}, found {height}x{width}")


class WanFamilyVAE(WanVAE):
    """Frozen video VAE of Wan 2.1 or Wan 2.2; the config states its spatial compression factor."""

    class Config(WanVAE.Config):
        vae_path: str = ""
        """A diffusers AutoencoderKLWan folder, a pipeline folder, or a hub repository that contains one."""
        spatial_factor: Literal[8, 16] = 8
        """Spatial compression: pixels per latent, in height and in width: 8 for Wan 2.1, 16 for Wan 2.2."""

        @property
        def cell(self) -> int:
            return self.spatial_factor
