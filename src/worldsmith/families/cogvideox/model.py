"""CogVideoX: the model (diffusers' transformer, video VAE, text encoder), and its DDIM and DPM samplers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, Factor, Range
from worldsmith.families.cogvideox.architecture import ImageConfig, NetworkConfig
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.families.diffusers_pipeline.sampling import PipelineDefaults, SchedulerSampler, SchedulerSolver
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.models.real_values import real_values
from worldsmith.models.video_model import (
    NOISE_LEVELS,
    DynamicGuidance,
    InitialState,
    Mode,
    SampleLayout,
    Sampling,
    VideoSampler,
)
from worldsmith.models.video_vae.cogvideox import DECODED_FRAMES, SPATIAL_FACTOR, TEMPORAL_FACTOR, CogVideoXVAE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IMAGE_OFS = 2.0
"""Value of the network input `ofs` of CogVideoX 1.5 image-to-video."""
KEPT = "video-to-video regenerates a video (strength sets how much), and image-to-video uses its first frame"
SCHEDULERS = {"ddim": "CogVideoXDDIMScheduler", "dpm": "CogVideoXDPMScheduler"}
"""Names of the scheduler classes in diffusers, by solver."""


class SamplingConfig(Config):
    """Default sampling settings; an exported diffusers pipeline contains only the scheduler, not the other settings."""

    scheduler: Literal["ddim", "dpm"] | None = None
    """The solver; None: dpm for a network with rotary position embeddings (such as CogVideoX-5B), otherwise ddim."""
    steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] = 50
    """Number of solver steps."""
    guidance: Factor = 6.0
    """Scale of classifier-free guidance; 1 disables it."""
    dynamic_guidance: DynamicGuidance | None = None
    """Schedule of the guidance scale: off, by_timestep (as released: oscillates between 1 and 1 + guidance), or by_step
    (grows from 1 to 1 + guidance); None: by_timestep with dpm, otherwise off."""
    guidance_exponent: Count = 5
    """Exponent of the dynamic guidance scale."""


@dataclass(frozen=True, slots=True)
class CogVideoXDefaults(PipelineDefaults):
    """Default generation settings and the noise schedule of training; the default values are those of CogVideoX-5B."""

    refused: ClassVar[Mapping[str, str]] = {
        "shift": "the noise schedule of training defines the noise level of each step",
        "condition_frame_indexes_vision": KEPT,
        "condition_video_keep": KEPT,
    }
    schedulers: ClassVar[tuple[str, ...]] = tuple(SCHEDULERS)

    steps: int = 50
    scheduler: str = "dpm"
    """The solver: ddim, or dpm (second-order DPM-Solver++, which adds random noise in each step)."""
    dynamic_guidance: str = "off"
    """Schedule of the guidance scale: off, by_timestep or by_step."""
    guidance_exponent: int = 5
    num_timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    shift_scale: float = 1.0
    zero_terminal_snr: bool = True
    timestep_spacing: str = "trailing"

    def scheduler_settings(self) -> dict[str, Any]:
        """Returns the constructor arguments of a diffusers scheduler with the noise schedule of these defaults."""
        return {
            "num_train_timesteps": self.num_timesteps,
            "beta_start": self.beta_start,
            "beta_end": self.beta_end,
            "beta_schedule": "scaled_linear",
            "prediction_type": "v_prediction",
            "rescale_betas_zero_snr": self.zero_terminal_snr,
            "snr_shift_scale": self.shift_scale,
            "timestep_spacing": self.timestep_spacing,
            "clip_sample": False,
            "set_alpha_to_one": True,
            "steps_offset": 0,
        }

    def make_scheduler(self, name: str) -> Any:
        """Builds the diffusers scheduler `name`, "ddim" or "dpm"."""
        import diffusers

        return getattr(diffusers, SCHEDULERS[name])(**self.scheduler_settings())


class CogVideoXGenerator(PipelineModel):
    """CogVideoX: a transformer over text and video tokens; latents of an image are concatenated to those of the video.

    In CogVideoX 1.5 a token covers two latent frames; an odd number of latent frames is padded by one in front.
    """

    network_class = "CogVideoXTransformer3DModel"
    text_channels = "text_embed_dim"
    defaults_class = CogVideoXDefaults

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "cogvideox"

        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Network sizes."""
        image: ImageConfig | None = None
        """Image conditioning, for a network with twice as many input as output channels; None: text-to-video."""
        tokenizer: CogVideoXVAE.Config = field(default_factory=CogVideoXVAE.Config)
        """The video VAE."""
        text_encoder: T5TextEncoder.Config = field(default_factory=T5TextEncoder.Config)
        """The text encoder."""
        sampling: SamplingConfig = field(default_factory=SamplingConfig)
        """Default sampling settings."""

        @property
        def modes(self) -> tuple[Mode, ...]:
            """Supported generation modes.

            CogVideoX 1.5 does not support video2video, since an odd number of latent frames does not fill its temporal
            patches.
            """
            regenerating: tuple[Mode, ...] = () if self.network.patch_size_t else ("video2video",)
            return ("text2image", "text2video", *regenerating) if self.image is None else ("image2video",)

        @property
        def latent_grid(self) -> tuple[int, ...]:
            """Compression of the VAE and patch sizes of the network, as arguments of `LatentGrid`.

            They are: frames per latent frame, pixels per latent (each side), latents per token (each side), latent
            frames that the VAE decodes together, latent frames per token.
            """
            network = self.network
            return TEMPORAL_FACTOR, SPATIAL_FACTOR, network.patch_size, DECODED_FRAMES, network.patch_size_t or 1

        def check(self) -> None:
            super().check()
            network, image = self.network, self.image
            if network.in_channels != network.out_channels * (1 if image is None else 2):
                why = "image latents have as many channels as the video latents and are concatenated to them"
                remedy = "write image = {} if in_channels = 2 * out_channels, and omit image otherwise"
                raise wrong(self, "image", "network.in_channels", "network.out_channels", why=why, remedy=remedy)
            if image is not None:
                image.check()
            elif network.ofs_embed_dim:
                why = "the ofs embedding requires image conditioning"
                raise wrong(self, "network.ofs_embed_dim", "image", why=why, remedy="write none")
            if self.text_encoder.max_length != self.network.max_text_seq_length:
                names = "text_encoder.max_length", "network.max_text_seq_length"
                why = "text encoder and network must have the same number of text tokens"
                raise wrong(self, *names, why=why, remedy="write the same number")

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
        self, noisy: Tensor, timesteps: Tensor, text: Tensor, image: Tensor | None = None, **extra_inputs: Any
    ) -> Tensor:
        """Runs the network.

        Args:
            noisy: Noisy latents, [n, C, t, h, w]; t is a multiple of the temporal patch size.
            timesteps: Timesteps, [n].
            text: Text embeddings, [n, tokens, d].
            image: Latents of the conditioning image, extended to all frames, [n, C, t, h, w]; None without an image.
            extra_inputs: Ignored.

        Returns:
            Predictions of v, [n, C, t, h, w].
        """
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
        """Returns the number of latent frames to add to `frames` latent frames to fill the temporal patches."""
        return -frames % (self.config.network.patch_size_t or 1)

    def rotary(self, latent_shape: tuple[int, int, int]) -> tuple[Tensor, Tensor] | None:
        """Computes the rotary tables (cos, sin), each [tokens, head channels], for latents of shape (t, h, w).

        The tables equal those of diffusers' pipelines. Returns None if the network has no rotary position embeddings.
        """
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
    """Replaces the position table of diffusers' patch embedding `patch`, a float64 buffer, by a parameter, in place."""
    from torch import nn

    table = patch.pos_embedding
    del patch.pos_embedding
    patch.pos_embedding = nn.Parameter(table.float())


class CogVideoXSampler(SchedulerSampler):
    """Sampler with DDIM or DPM-Solver++ for text-to-video, image-to-video and video-to-video."""

    model: CogVideoXGenerator

    @real_values()
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        scheduler = self.model.defaults.make_scheduler(self.sampling.scheduler or self.model.defaults.scheduler)
        scheduler.set_timesteps(self.sampling.steps)
        return scheduler

    @property
    def scales(self) -> Sequence[float]:
        constant = super().scales
        if self.sampling.dynamic_guidance in (None, "off") or self.sampling.guidance == 1:
            return constant
        timesteps = self.make_scheduler().timesteps[self.skipped :].tolist()
        by_step = self.sampling.dynamic_guidance == "by_step"
        remaining = range(len(constant), 0, -1) if by_step else timesteps
        exponent = self.model.defaults.guidance_exponent
        return [dynamic_scale(self.sampling.guidance, left, len(constant), exponent) for left in remaining]

    def make_solver(self, scheduler: Any, draws: torch.Generator) -> SchedulerSolver:
        kind = DPMSolver if self.sampling.scheduler == "dpm" else FramesFirst
        return kind(scheduler, draws, self.skipped)

    def start(
        self, layout: SampleLayout, solver: SchedulerSolver, condition: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns (initial state [C, t, h, w], image latents [C, t, h, w] for all frames, or None without an image).

        The initial state is noise; for video-to-video, the noisy latents of the given video.

        Args:
            layout: Layout of the sample.
            solver: Solver of the sample, which samples the noise.
            condition: Image or video to start from, uint8 [3, T, H, W]; None: text only.

        Raises:
            ValueError: If an image is given and the network accepts none, or if it requires one and none is given.
        """
        import torch

        model, image = self.model, self.model.config.image
        if (image is not None) != (layout.condition_frames == 1) or layout.condition_frames > 1:
            raise ValueError(
                f"this network supports {', '.join(model.config.modes)}; use an image only with image-to-video"
            )
        frames = layout.latent_shape[0] + model.padding(layout.latent_shape[0])
        shape = (model.latent_channels, frames, *layout.latent_shape[1:])
        if condition is None:
            return solver.noise(shape).to(model.device), None
        moments = model.encode(condition)
        posterior_noise = torch.randn((1, moments.shape[0] // 2, *moments.shape[1:]), generator=solver.draws)[0].to(
            moments.device
        )
        noise = solver.noise(shape).to(moments.device)
        if image is not None:
            shown = model.vae.image_latents(moments, posterior_noise, image.latent_scale)
            return noise, image.extend(shown[None], frames)[0]
        noisy: Tensor = solver.scheduler.add_noise(
            model.vae.latents(moments, posterior_noise), noise, solver.timesteps[:1]
        )
        return noisy, None

    def extra_inputs(self, samples: Sequence[InitialState]) -> dict[str, Any]:
        import torch

        images = [sample.shown for sample in samples if sample.shown is not None]
        return {"image": torch.stack(images)} if images else {}

    def finish(self, sample: InitialState, state: Tensor) -> Tensor:
        """Returns the final latents `state` without the latent frames that were added in front as padding."""
        return state[:, self.model.padding(sample.conditional.latent_shape[0]) :]


class FramesFirst(SchedulerSolver):
    """Solver that samples noise and takes steps in the layout [t, C, h, w], which diffusers uses for CogVideoX."""

    def noise(self, shape: tuple[int, ...]) -> Tensor:
        channels, frames, *sides = shape
        return super().noise((frames, channels, *sides)).transpose(0, 1)

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        return super().step(answer.transpose(0, 1), state.transpose(0, 1)).transpose(0, 1)


class DPMSolver(FramesFirst):
    """Solver for DPM-Solver++ (second order), which passes the predicted clean sample to the next step."""

    clean: Tensor | None = None

    def advance(self, answer: Tensor, timestep: Tensor, state: Tensor) -> Tensor:
        back = self.timesteps[self.index - 2] if self.index > 1 else None
        moved, self.clean = self.scheduler.step(
            answer, self.clean, timestep, back, state, **self.arguments, return_dict=False
        )
        return moved


def dynamic_scale(guidance: float, left: float, steps: int, exponent: int = 5) -> float:
    """Computes the guidance scale 1 + g·(1 - cos(π·((steps - left)/steps)^exponent))/2.

    The released pipelines pass the timestep as `left`, not a number of steps, so the scale oscillates between 1 and
    1 + g.

    Args:
        guidance: g.
        left: Number of steps left, or the timestep.
        steps: Number of solver steps.
        exponent: Exponent of (steps - left)/steps.
    """
    return 1 + guidance * (1 - math.cos(math.pi * ((steps - left) / steps) ** exponent)) / 2
