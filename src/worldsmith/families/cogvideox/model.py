"""CogVideoX: diffusers' transformer, its video VAE and its text encoder in one component."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.families.cogvideox.architecture import ImageConfig, NetworkConfig
from worldsmith.families.cogvideox.sampling import CogVideoXDefaults, CogVideoXSampler, SamplingConfig
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.models.video_model import Mode, Sampling, VideoSampler
from worldsmith.models.video_vae.cogvideox import DECODED_FRAMES, SPATIAL_FACTOR, TEMPORAL_FACTOR, CogVideoXVAE
from worldsmith.models.weights.shapes import Shapes

if TYPE_CHECKING:
    from torch import Tensor

IMAGE_OFS = 2.0
"""What CogVideoX 1.5 is told beside the timestep when there is an image."""


class CogVideoXGenerator(PipelineModel):
    """A transformer over text and video tokens; an image's latents stand beside the video's.

    A token of CogVideoX 1.5 has two latent frames: where one is missing, it belongs in front (`padding`).
    """

    network_class = "CogVideoXTransformer3DModel"
    text_channels = "text_embed_dim"
    defaults_class = CogVideoXDefaults

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "cogvideox"
        makes: ClassVar[str] = "videos"

        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Sizes of the network."""
        image: ImageConfig | None = None
        """The image beside the noisy video, for a network of twice as many channels; None: text to video."""
        tokenizer: CogVideoXVAE.Config = field(default_factory=CogVideoXVAE.Config)
        """The video VAE."""
        text_encoder: T5TextEncoder.Config = field(default_factory=T5TextEncoder.Config)
        """The text encoder."""
        sampling: SamplingConfig = field(default_factory=SamplingConfig)
        """How videos are made with it."""

        @property
        def modes(self) -> tuple[Mode, ...]:
            """What it makes out of what; whole tokens of CogVideoX 1.5 have no place for all frames of a given clip."""
            anew: tuple[Mode, ...] = () if self.network.patch_size_t else ("video2video",)
            return ("text2image", "text2video", *anew) if self.image is None else ("image2video",)

        @property
        def latent_grid(self) -> tuple[int, ...]:
            """As in `LatentGrid`."""
            network = self.network
            return TEMPORAL_FACTOR, SPATIAL_FACTOR, network.patch_size, DECODED_FRAMES, network.patch_size_t or 1

        def check(self) -> None:
            super().check()
            network, image = self.network, self.image
            if network.in_channels != network.out_channels * (1 if image is None else 2):
                why = "an image has as many channels as the video, and stands beside it"
                remedy = "write image = {} for in_channels = 2 * out_channels, and leave it out for the same number"
                raise wrong(self, "image", "network.in_channels", "network.out_channels", why=why, remedy=remedy)
            if image is not None:
                image.check()
            elif network.ofs_embed_dim:
                raise wrong(self, "network.ofs_embed_dim", "image", why="it is there for an image", remedy="write none")
            if self.text_encoder.max_length != self.network.max_text_seq_length:
                names = "text_encoder.max_length", "network.max_text_seq_length"
                raise wrong(self, *names, why="every caption has one length in both", remedy="write the same number")

        def shapes(self) -> Shapes:
            return self.network.shapes()

    config: Config
    defaults: CogVideoXDefaults

    def sampler(self, sampling: Sampling) -> VideoSampler:
        return CogVideoXSampler(self, sampling)

    def make_network(self) -> Any:
        network = super().make_network()
        if self.config.network.use_learned_positional_embeddings:
            make_trainable(network.patch_embed)
        return network

    def restore_buffers(self) -> None:
        patch = self.network.patch_embed
        if "pos_embedding" in dict(patch.named_buffers()):
            sizes = patch.sample_height, patch.sample_width, patch.sample_frames
            patch.pos_embedding = patch._get_positional_embeddings(*sizes, device=self.device)

    def predict(
        self, noisy: Tensor, timesteps: Tensor, text: Tensor, image: Tensor | None = None, **beside: Any
    ) -> Tensor:
        """With the image's latents, [n, C, t, h, w]; `t` is a whole number of tokens."""
        import torch

        states = noisy if image is None else torch.cat([noisy, image], dim=1)
        ofs = {"ofs": torch.full((1,), IMAGE_OFS, device=self.device)} if self.config.network.ofs_embed_dim else {}
        answers: Tensor = self.network(  # diffusers has frames before channels
            hidden_states=states.transpose(1, 2).to(self.dtype),
            encoder_hidden_states=text.to(self.dtype),
            timestep=timesteps,
            image_rotary_emb=self.rotary((noisy.shape[2], noisy.shape[3], noisy.shape[4])),
            return_dict=False,
            **ofs,
        )[0]
        return answers.transpose(1, 2)

    def padding(self, frames: int) -> int:
        """Latent frames that so many lack for whole tokens."""
        return -frames % (self.config.network.patch_size_t or 1)

    def rotary(self, latent_shape: tuple[int, int, int]) -> tuple[Tensor, Tensor] | None:
        """(cos, sin) [tokens, head] of latents (t, h, w), as diffusers' pipelines make them; None without rotary."""
        network = self.config.network
        if not network.use_rotary_positional_embeddings:
            return None
        from diffusers.models.embeddings import get_3d_rotary_pos_embed
        from diffusers.pipelines.cogvideo.pipeline_cogvideox import get_resize_crop_region_for_grid

        network.check_clip(latent_shape)
        frames, *sides = latent_shape
        height, width = (side // network.patch_size for side in sides)
        base = network.sample_height // network.patch_size, network.sample_width // network.patch_size
        if network.patch_size_t:
            places: dict[str, Any] = {"crops_coords": None, "grid_type": "slice", "max_size": base}
        else:
            places = {"crops_coords": get_resize_crop_region_for_grid((height, width), *reversed(base))}
        cos, sin = get_3d_rotary_pos_embed(
            embed_dim=network.attention_head_dim, grid_size=(height, width),
            temporal_size=frames // (network.patch_size_t or 1), device=self.device, **places,
        )  # fmt: skip
        return cos, sin


def make_trainable(patch: Any) -> None:
    """Turns the learned table of positions, a buffer of diffusers in float64, into a parameter of the same name."""
    from torch import nn

    table = patch.pos_embedding
    del patch.pos_embedding
    patch.pos_embedding = nn.Parameter(table.float())
