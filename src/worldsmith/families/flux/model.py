"""FLUX.1: the model (transformer, image VAE, two text encoders), and its sampler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Factor
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.families.diffusers_pipeline.sampling import FlowMatchDefaults, FlowMatchSampler
from worldsmith.families.flux.architecture import PACKED, NetworkConfig
from worldsmith.families.flux.text_encoder import FluxTextEncoder
from worldsmith.models.video_model import InitialState, Mode, Sampling, VideoSampler
from worldsmith.models.video_vae.posterior import ImageVAE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CELL_PIXELS, TOKEN_CELLS = 8, 2
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
TARGETS = (*(f"attn.{layer}" for layer in ATTENTION), "ff.net.0.proj", "ff.net.2",
           "ff_context.net.0.proj", "ff_context.net.2")  # fmt: skip
"""Layers with LoRA adapters in the training example of diffusers."""
NO_GUIDANCE = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FluxDefaults(FlowMatchDefaults):
    """Default generation settings of FLUX.1; the default values are those of FLUX.1-dev."""

    num_frames: int | None = 1
    steps: int = 28
    guidance: float = 3.5


class FluxGenerator(PipelineModel):
    """FLUX.1: a transformer over text tokens and the tokens of one image, which is a clip of one frame."""

    network_class = "FluxTransformer2DModel"
    text_channels = "joint_attention_dim"
    defaults_class = FluxDefaults

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "flux"
        layer_lists: ClassVar[Sequence[str]] = ("transformer_blocks", "single_transformer_blocks")
        modes: ClassVar[tuple[Mode, ...]] = ("text2image",)

        lora_target_modules: str = ",".join(TARGETS)
        """Linear layers with LoRA adapters, comma-separated: ends of module paths, such as "to_q" or "attn.to_q"."""
        training_guidance: Factor = NO_GUIDANCE
        """Guidance scale that is an input of the network in training; 1 for a network without this input."""
        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Network sizes."""
        tokenizer: ImageVAE.Config = field(default_factory=ImageVAE.Config)
        """The image VAE."""
        text_encoder: FluxTextEncoder.Config = field(default_factory=FluxTextEncoder.Config)
        """The text encoders."""

        @property
        def latent_grid(self) -> tuple[int, int, int]:
            """Compression and patch size: frames per latent frame, pixels per latent, latents per token (each side)."""
            return 1, CELL_PIXELS, TOKEN_CELLS

        def check(self) -> None:
            super().check()
            if self.training_guidance != NO_GUIDANCE and not self.network.guidance_embeds:
                why, remedy = "this network has no guidance input", f"write {NO_GUIDANCE}"
                raise wrong(self, "training_guidance", "network.guidance_embeds", why=why, remedy=remedy)

    config: Config
    defaults: FluxDefaults

    def materialize(self, device: str | torch.device) -> None:
        super().materialize(device)
        if self.device.type == "cuda":
            import torch

            # Measured on an H100 with cuDNN 9.19: bfloat16 losses differ by 8 to 15 %, or the memory access is illegal.
            torch.backends.cuda.enable_cudnn_sdp(False)
            logger.info(
                "attention: cuDNN attention is disabled, because it gave wrong results for FLUX on an H100 (cuDNN 9.19)"
            )

    def sampler(self, sampling: Sampling) -> VideoSampler:
        return FluxSampler(self, sampling)

    @property
    def text_shape(self) -> tuple[int, int]:
        """(tokens, channels) of the hidden states of a caption: one row for CLIP, then T5's hidden states."""
        tokens, channels = super().text_shape
        return 1 + tokens, channels

    @property
    def latent_channels(self) -> int:
        return self.config.network.in_channels // PACKED

    def predict(self, noisy: Tensor, timesteps: Tensor, text: Tensor, **extra_inputs: Any) -> Tensor:
        """Runs the network on images of one size.

        Args:
            noisy: Noisy latents [n, C, 1, h, w].
            timesteps: Timesteps [n], 0 to 1000.
            text: Hidden states of the captions [n, 1 + T5 tokens, d]; the first row is CLIP's pooled state.
            extra_inputs: Optional `guidance`: guidance scale, an input of the network; default: `training_guidance`.

        Returns:
            Velocities [n, C, 1, h, w].
        """
        import torch
        from torch.nn.functional import pixel_shuffle, pixel_unshuffle

        grid, network = [side // TOKEN_CELLS for side in noisy.shape[3:]], self.config.network
        guidance = extra_inputs.get("guidance", self.config.training_guidance)
        places = [torch.arange(side, device=self.device, dtype=torch.float32) for side in (1, *grid)]
        answers = self.network(
            hidden_states=pixel_unshuffle(noisy[:, :, 0], TOKEN_CELLS).flatten(2).transpose(1, 2).to(self.dtype),
            timestep=timesteps / 1000,
            guidance=torch.full_like(timesteps, guidance) if network.guidance_embeds else None,
            pooled_projections=text[:, 0, : network.pooled_projection_dim].to(self.dtype),
            encoder_hidden_states=text[:, 1:].to(self.dtype),
            txt_ids=torch.zeros(text.shape[1] - 1, 3, device=self.device),
            img_ids=torch.cartesian_prod(*places),
            return_dict=False,
        )[0]
        return pixel_shuffle(answers.transpose(1, 2).unflatten(2, grid), TOKEN_CELLS)[:, :, None]


class FluxSampler(FlowMatchSampler):
    """Sampler of FLUX.1 with Euler's method; the guidance scale is an input of the network.

    Raises:
        ValueError: If a guidance scale other than 1 is given and the network has no guidance input.
    """

    model: FluxGenerator

    def __init__(self, model: FluxGenerator, sampling: Sampling) -> None:
        if not model.config.network.guidance_embeds and sampling.guidance != 1:
            raise ValueError(
                f"guidance: expected 1, found {sampling.guidance:g}: this network has no guidance input. Set it to 1"
            )
        super().__init__(model, sampling)

    @property
    def scales(self) -> Sequence[float]:
        """Scale of classifier-free guidance at each solver step: always 1, which needs no unconditional branch."""
        return [1.0] * self.sampling.steps

    def extra_inputs(self, samples: Sequence[InitialState]) -> dict[str, Any]:
        return {"guidance": self.sampling.guidance}
