"""CogVideoX: diffusers' transformer, its video VAE and its text encoder in one component."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.models.cogvideox.architecture import NetworkConfig
from worldsmith.models.cogvideox.noise_table import NoiseTable
from worldsmith.models.model_files import SHORT_NAMES
from worldsmith.models.pipeline.model import PipelineModel
from worldsmith.models.pipeline.text_encoder import T5TextEncoder
from worldsmith.models.video_vae.cogvideox import SPATIAL_FACTOR, TEMPORAL_FACTOR, CogVideoXVAE

if TYPE_CHECKING:
    from torch import Tensor

for tier in ("2b", "5b"):
    SHORT_NAMES[f"CogVideoX-{tier}"] = f"zai-org/CogVideoX-{tier}"


class CogVideoXGenerator(PipelineModel):
    """A transformer over text and video tokens."""

    network_class = "CogVideoXTransformer3DModel"
    defaults_class = NoiseTable

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "cogvideox"

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

        def adaptable_layers(self) -> list[str]:
            return self.network.linear_layers()

        def count_parameters(self) -> int:
            return self.network.count_parameters()

    config: Config

    def restore_buffers(self) -> None:
        patch = self.network.patch_embed
        if hasattr(patch, "pos_embedding"):
            sizes = patch.sample_height, patch.sample_width, patch.sample_frames
            patch.pos_embedding = patch._get_positional_embeddings(*sizes, device=self.device)

    def predict(self, noisy: Tensor, timesteps: Tensor, text: Tensor, **beside: Any) -> Tensor:
        answers: Tensor = self.network(  # diffusers has frames before channels
            hidden_states=noisy.transpose(1, 2).to(self.dtype),
            encoder_hidden_states=text.to(self.dtype),
            timestep=timesteps,
            image_rotary_emb=self.rotary((noisy.shape[2], noisy.shape[3], noisy.shape[4])),
            return_dict=False,
        )[0]
        return answers.transpose(1, 2)

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
