"""CogVideoX: diffusers' transformer, its video VAE and its text encoder in one component."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.models.cogvideox.architecture import NetworkConfig
from worldsmith.models.cogvideox.noise_table import NoiseTable
from worldsmith.models.cogvideox.text_encoder import T5TextEncoder
from worldsmith.models.model import Model, NetworkParts
from worldsmith.models.model_files import SHORT_NAMES
from worldsmith.models.video_vae.cogvideox import SPATIAL_FACTOR, TEMPORAL_FACTOR, CogVideoXVAE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

for tier in ("2b", "5b"):
    SHORT_NAMES[f"CogVideoX-{tier}"] = f"zai-org/CogVideoX-{tier}"


class CogVideoXGenerator(Model):
    """A transformer over text and video tokens. Parameters have diffusers' names.

    VAE and text encoder are loaded when they are first used. `defaults`: what weights were trained with before.
    """

    class Config(Model.Config):
        family: ClassVar[str] = "cogvideox"
        task: ClassVar[str] = "vfm"

        lora_target_modules: str = "to_q,to_k,to_v,to_out.0"
        """The linear layers that get an adapter, comma-separated: last part of their path, or more of it with dots."""
        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Sizes of the network."""
        tokenizer: CogVideoXVAE.Config = field(default_factory=CogVideoXVAE.Config)
        """The video VAE."""
        text_encoder: T5TextEncoder.Config = field(default_factory=T5TextEncoder.Config)
        """The text encoder."""

        @property
        def latent_grid(self) -> tuple[int, int, int]:
            """Frames of a latent frame, pixels of a latent cell, latent cells of a token."""
            return TEMPORAL_FACTOR, SPATIAL_FACTOR, self.network.patch_size

        def check(self) -> None:
            super().check()
            if self.text_encoder.max_length != self.network.max_text_seq_length:
                names = "text_encoder.max_length", "network.max_text_seq_length"
                raise wrong(self, *names, why="every caption has one length in both", remedy="write the same number")
            if self.parallelism.cfg_parallel_shard_degree != 1:
                name = "parallelism.cfg_parallel_shard_degree"
                raise wrong(self, name, why="training has no guidance to share", remedy="write 1")

        def adaptable_layers(self) -> list[str]:
            return self.network.linear_layers()

        def count_parameters(self) -> int:
            return self.network.count_parameters()

    config: Config
    network: Any

    def __init__(
        self,
        config: Config,
        *,
        device: str | torch.device = "cpu",
        seed: int | None = None,
        defaults: NoiseTable | None = None,
    ) -> None:
        self.defaults = defaults or NoiseTable()
        super().__init__(config, device=device, seed=seed)

    def make_network(self) -> Any:
        import diffusers

        library: Any = diffusers  # its classes carry no types
        return library.CogVideoXTransformer3DModel(**asdict(self.config.network))

    def parts(self) -> NetworkParts:
        return NetworkParts(layers=list(self.network.transformer_blocks))

    def init_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        from worldsmith.models.cogvideox.initialization import init_weights

        init_weights(self.network, seed, names)

    def materialize(self, device: str | torch.device) -> None:
        super().materialize(device)
        patch = self.network.patch_embed
        if self.device.type != "meta" and hasattr(patch, "pos_embedding"):  # what to_empty leaves is garbage
            sizes = patch.sample_height, patch.sample_width, patch.sample_frames
            patch.pos_embedding = patch._get_positional_embeddings(*sizes, device=self.device)

    @cached_property
    def vae(self) -> CogVideoXVAE:
        vae: CogVideoXVAE = self.config.tokenizer.build(device=self.device)
        return vae

    @cached_property
    def text_encoder(self) -> T5TextEncoder:
        """The tokenizer, whose encoder is not read yet."""
        encoder: T5TextEncoder = self.config.text_encoder.build()
        return encoder

    def encode(self, video: Tensor) -> Tensor:
        """uint8 video [3, T, H, W], T = 4k+1, to moments [2C, k+1, H/8, W/8], float32."""
        return self.vae.encode(video)

    def read(self, captions: Sequence[Sequence[int] | None]) -> Tensor:
        """Ids of captions to what the network reads, [n, text, d]; None stands for a dropped caption of zeros."""
        import torch

        if self.text_encoder.encoder is None:
            self.text_encoder.load(self.device)
        states = self.text_encoder.encode([ids or () for ids in captions])
        kept = torch.tensor([ids is not None for ids in captions], device=states.device)
        return states * kept[:, None, None]

    @property
    def dtype(self) -> torch.dtype:
        """That of the network's inputs."""
        import torch

        return torch.bfloat16 if self.config.precision == "bfloat16" else torch.float32

    def rotary(self, latent_shape: tuple[int, int, int]) -> tuple[Tensor, Tensor] | None:
        """(cos, sin) [tokens, head] of latents (t, h, w), as diffusers' pipelines make them; None without rotary."""
        network = self.config.network
        if not network.use_rotary_positional_embeddings:
            return None
        from diffusers.models.embeddings import get_3d_rotary_pos_embed
        from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid

        frames, *sides = latent_shape
        grid = tuple(side // network.patch_size for side in sides)
        base = network.sample_width // network.patch_size, network.sample_height // network.patch_size
        crops = get_resize_crop_region_for_grid(grid, *base)
        cos, sin = get_3d_rotary_pos_embed(
            embed_dim=network.attention_head_dim, crops_coords=crops, grid_size=grid, temporal_size=frames,
            device=self.device,
        )  # fmt: skip
        return cos, sin

    @property
    def latent_fingerprint(self) -> str:
        """Changes with everything in the VAE that changes moments."""
        return self.vae.fingerprint
