"""Wan 2.1 and 2.2: the model (diffusers' transformer, video VAE, text encoder), and its UniPC sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Range
from worldsmith.config.errors import UserError
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.families.diffusers_pipeline.sampling import (
    PipelineDefaults,
    SchedulerSampler,
    SchedulerSolver,
    make_unipc_scheduler,
)
from worldsmith.families.diffusers_pipeline.text_encoder import WEIGHTS, UMT5TextEncoder
from worldsmith.families.wan.architecture import MASK, NetworkConfig
from worldsmith.families.wan.image_encoder import WanImageEncoder
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import SCHEME, hub_name, is_local, local_folder
from worldsmith.models.real_values import in_simulation, real_values, without_values
from worldsmith.models.video_model import InitialState, Mode, SampleLayout, Sampling, VideoSampler
from worldsmith.models.video_vae.wan import WanFamilyVAE
from worldsmith.models.video_vae.wan_files import TEMPORAL_FACTOR

if TYPE_CHECKING:
    from torch import Tensor

EXPERTS = {"high_noise": "transformer", "low_noise": "transformer_2"}
"""Pipeline subfolders of the two experts."""
TEXT_TOKENS = 512
"""Required number of text tokens for a network with an image encoder: diffusers counts the text hidden states, which
follow the hidden states of the image, from the end."""
TIMESTEPS = 1000
"""Timestep of pure noise."""


@dataclass(frozen=True, slots=True)
class WanDefaults(PipelineDefaults):
    """Default generation settings of Wan; the default values are those of the released Wan 2.1 at 480p."""

    refused: ClassVar[Mapping[str, str]] = {
        "dynamic_guidance": "each expert has a constant guidance scale",
        "strength": "video-to-video is not supported for Wan",
    }

    shift: float | None = 3.0
    steps: int = 50
    guidance: float = 5.0
    guidance_2: float | None = None
    """Guidance scale of the low-noise expert; None: that of the high-noise expert."""

    def make_scheduler(self, shift: float | None = None) -> Any:
        """Builds the UniPC scheduler of the released pipelines with `shift`; None: `self.shift`, or 1."""
        return make_unipc_scheduler(shift or self.shift or 1.0)


class WanGenerator(PipelineModel):
    """Wan: a transformer over video tokens, with cross-attention to the text in each block.

    The model is one network, or one of two experts for different noise levels. For generation, the expert that is not
    this model is read from the pipeline in `config.pipeline`.
    """

    network_class = "WanTransformer3DModel"
    components: ClassVar[Sequence[str]] = (*PipelineModel.components, "image_encoder.path", "pipeline")
    text_channels = "text_dim"
    defaults_class = WanDefaults

    class Config(PipelineModel.Config):
        family: ClassVar[str] = "wan"
        layer_lists: ClassVar[Sequence[str]] = ("blocks",)
        full_precision: ClassVar[Sequence[str]] = ("time_embedder", "norm1", "norm2", "norm3")

        expert: Literal["high_noise", "low_noise"] | None = None
        """Expert of Wan 2.2 A14B that this network is; None: one network for all noise levels."""
        boundary_ratio: Annotated[float, Range(gt=0, lt=1)] | None = None
        """Noise level at which the experts switch: 0.875 for text-to-video, 0.9 for image-to-video."""
        pipeline: str = ""
        """Only with `expert`: path or hub name of the pipeline that contains both experts. Training starts from
        it; generation and exports use its other expert."""
        expand_timesteps: bool = False
        """Whether each latent frame has its own timestep (Wan 2.2 5B), which is 0 for conditioning frames."""
        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Network sizes."""
        tokenizer: WanFamilyVAE.Config = field(default_factory=WanFamilyVAE.Config)
        """The video VAE."""
        text_encoder: UMT5TextEncoder.Config = field(default_factory=UMT5TextEncoder.Config)
        """The text encoder."""
        image_encoder: WanImageEncoder.Config = field(default_factory=WanImageEncoder.Config)
        """Image encoder for the first frame; only used by Wan 2.1 image-to-video networks."""

        @property
        def modes(self) -> tuple[Mode, ...]:
            texts: tuple[Mode, ...] = () if self.network.takes_image else ("text2image", "text2video")
            images: tuple[Mode, ...] = ("image2video",)
            return texts + images if self.network.takes_image or self.expand_timesteps else texts

        @property
        def latent_grid(self) -> tuple[int, int, int]:
            """Compression and patch size: frames per latent frame, pixels per latent, latents per token (each side)."""
            return TEMPORAL_FACTOR, self.tokenizer.spatial_factor, self.network.patch_size[1]

        @property
        def noise_levels(self) -> tuple[float, float]:
            """Range (low, high) of the noise levels for which this network is used; high is not included."""
            high = self.expert == "high_noise"
            boundary = self.boundary_ratio
            return (0.0, 1.0) if boundary is None else (boundary, 1.0) if high else (0.0, boundary)

        @property
        def trains_affine_norms(self) -> bool:
            """Whether the blocks have trained weights of norms that compute in float32, as FSDP units of their own."""
            return self.network.cross_attn_norm and not self.lora_enabled

        def own_weights(self) -> tuple[str, str] | None:
            where = EXPERTS.get(self.expert or "")
            if not where or not self.pipeline:
                return None
            return "model.config.pipeline", pipeline_part_name(self.pipeline, where)

        @property
        def sampling_network(self) -> str:
            return "the pipeline's other expert" if self.expert else ""

        def check(self) -> None:
            super().check()
            recompute = self.activation_checkpointing
            if self.compile.enabled and recompute.save_every_second_matmul and self.trains_affine_norms:
                pair = "activation_checkpointing.save_every_second_matmul", "compile.enabled"
                why = (
                    "blocks whose float32 norms are trained are compiled in pieces, inside which no matmul can be saved"
                )
                raise wrong(self, *pair, why=why, remedy="omit one of them, or train adapters")
            if bool(self.network.image_dim) != bool(self.image_encoder.path):
                pair = "image_encoder.path", "network.image_dim"
                why = "a network with image_dim (Wan 2.1) requires an image encoder, and other networks accept none"
                raise wrong(self, *pair, why=why, remedy="set the pipeline with the image encoder, or omit both")
            if self.network.image_dim and (self.text_encoder.max_length != TEXT_TOKENS or not self.network.takes_image):
                pair = "text_encoder.max_length", "network.in_channels"
                why = f"a network with image_dim requires an image input and exactly {TEXT_TOKENS} text tokens"
                remedy = f"write {TEXT_TOKENS}, and in_channels = 2 * out_channels + {MASK}"
                raise wrong(self, *pair, why=why, remedy=remedy)
            if (self.expert is None) != (self.boundary_ratio is None) or (self.pipeline and self.expert is None):
                names = "expert", "boundary_ratio", "pipeline"
                why = "a model with two experts requires the trained expert, the switching noise level and the pipeline"
                raise wrong(self, *names, why=why, remedy="set all three, or none of them")
            if self.expand_timesteps and self.expert is not None:
                why, remedy = "only one network for all noise levels has a timestep per frame", "use one of them"
                raise wrong(self, "expand_timesteps", "expert", why=why, remedy=remedy)
            if self.expand_timesteps and self.network.takes_image:
                why = "with a timestep per frame, conditioning frames replace latents and are not concatenated to them"
                remedy = "use in_channels = out_channels"
                raise wrong(self, "expand_timesteps", "network.in_channels", why=why, remedy=remedy)

    config: Config
    defaults: WanDefaults

    def make_network(self) -> Any:
        if not self.config.expand_timesteps:
            return super().make_network()
        from worldsmith.families.wan.network import FrameTimestepTransformer

        return FrameTimestepTransformer(**asdict(self.config.network))

    def sampler(self, sampling: Sampling) -> VideoSampler:
        return WanSampler(self, sampling)

    def restore_buffers(self) -> None:
        rope = self.network.rope
        fresh = type(rope)(rope.attention_head_dim, rope.patch_size, rope.max_seq_len)
        rope.freqs_cos, rope.freqs_sin = fresh.freqs_cos.to(self.device), fresh.freqs_sin.to(self.device)

    @cached_property
    def image_encoder(self) -> WanImageEncoder:
        """The image encoder, loaded on first use.

        Raises:
            UserError: If the encoder does not have `network.image_dim` channels.
        """
        encoder: WanImageEncoder = self.config.image_encoder.build(device=self.device)
        expected = self.config.network.image_dim
        if encoder.channels != expected:
            raise UserError(
                f"model.config.image_encoder.path: expected an encoder of {expected} channels, as in "
                f"model.config.network.image_dim, found {encoder.channels}. Use the pipeline that the network "
                "belongs to"
            )
        return encoder

    @cached_property
    def other_expert(self) -> Any:
        """The frozen network of the expert that is not this model; downloaded if needed and loaded on first use.

        Raises:
            FileNotFoundError: If the folder of this expert in `config.pipeline` is not found.
        """
        if in_simulation():
            make = partial(self.library_class(), **asdict(self.config.network))
            return without_values(make, self.dtype, self.device).eval().requires_grad_(False)
        network = load_from_folder(self.library_class(), self.other_folder, torch_dtype=self.dtype)
        return network.to(self.device).eval().requires_grad_(False)

    @property
    def other_folder(self) -> Path:
        (other,) = (where for name, where in EXPERTS.items() if name != self.config.expert)
        name = pipeline_part_name(self.config.pipeline, other)
        return local_folder(name, file_patterns=WEIGHTS, field="model.config.pipeline")

    def predict(
        self,
        noisy: Tensor,
        timesteps: Tensor,
        text: Tensor,
        image: Tensor | None = None,
        image_states: Tensor | None = None,
        given: Sequence[int] = (),
        first: Sequence[Tensor | None] = (),
        both: bool = False,
        **extra_inputs: Any,
    ) -> Tensor:
        """Runs the network, or the expert for the timestep, on samples of one shape.

        A network with a timestep per latent frame (`expand_timesteps`) requires `given` or `first`; others ignore both.

        Args:
            noisy: Noisy latents [n, C, t, h, w].
            timesteps: Timesteps [n], 0 to 1000.
            text: Hidden states of the captions [n, text tokens, d].
            image: Mask and latents of the conditioning image, [n, 4 + C, t, h, w]; None without image input.
            image_states: Hidden states of the image encoder [n, tokens, d], for a network with that input.
            given: For each sample the number of leading latent frames that are already clean in `noisy` and get
                timestep 0; (): 1 for samples with a tensor in `first`, otherwise 0.
            first: For each sample the clean latents [C, 1, h, w] that replace its first latent frame, or None to keep
                the frame; (): all frames are kept.
            both: True: all samples run through the expert for `timesteps[0]`; False: through this model's network.
            extra_inputs: Ignored.

        Returns:
            Velocities [n, C, t, h, w].
        """
        import torch

        states = noisy if image is None else torch.cat([noisy, image], dim=1)
        network = self.network_at(float(timesteps[0])) if both else self.network
        if self.config.expand_timesteps:
            given = given or [0 if frame is None else 1 for frame in first]
            timesteps = frame_timesteps(timesteps, given, noisy.shape[2])
            states = replace_first_frames(first, states)
        return network(
            hidden_states=states.to(self.dtype),
            timestep=timesteps,
            encoder_hidden_states=text.to(self.dtype),
            encoder_hidden_states_image=None if image_states is None else image_states.to(self.dtype),
            return_dict=False,
        )[0]

    def network_at(self, timestep: float) -> Any:
        """Returns the network for a timestep (0 to 1000): that of this model, or `other_expert`."""
        config = self.config
        if config.boundary_ratio is None:
            return self.network
        needed = "high_noise" if timestep >= config.boundary_ratio * TIMESTEPS else "low_noise"
        return self.network if needed == config.expert else self.other_expert

    def with_first_frame_mask(self, latents: Tensor) -> Tensor:
        """Returns a tensor [4 + C, t, h, w]: four mask channels (1 in the first latent frame, else 0), then `latents`.

        Args:
            latents: Latents [C, t, h, w] of a video that shows the first frame, then gray frames.
        """
        import torch

        mask = torch.zeros(MASK, *latents.shape[1:], device=latents.device)
        mask[:, 0] = 1
        return torch.cat([mask, latents])


def frame_timesteps(timesteps: Tensor, given: Sequence[int], frames: int) -> Tensor:
    """Returns the timestep of each latent frame, [n, frames]; it is 0 for clean frames.

    Args:
        timesteps: Timesteps of the samples, [n].
        given: Number of clean leading latent frames of each sample.
        frames: Number of latent frames.
    """
    import torch

    places = torch.arange(frames, device=timesteps.device)
    return torch.stack([places >= clean for clean in given]) * timesteps[:, None]


def pipeline_part_name(pipeline: str, part: str) -> str:
    """Returns the location of a pipeline's subfolder: a local path, or a folder in a hub repository.

    Args:
        pipeline: Path or hub name of the pipeline.
        part: Name of the subfolder.
    """
    hub = None if is_local(pipeline) else hub_name(pipeline)
    return f"{pipeline.rstrip('/')}/{part}" if hub is None else f"{SCHEME}{hub}/{part}"


class WanSampler(SchedulerSampler):
    """Sampler of Wan with UniPC; a model with two experts switches between them at the noise level `boundary_ratio`."""

    model: WanGenerator

    @real_values()
    def make_scheduler(self, latent_shape: tuple[int, int, int] | None = None) -> Any:
        scheduler = self.model.defaults.make_scheduler(self.sampling.shift)
        scheduler.set_timesteps(self.sampling.steps)
        return scheduler

    @property
    def scales(self) -> Sequence[float]:
        low, boundary = self.model.defaults.guidance_2, self.model.config.boundary_ratio
        if boundary is None or low is None or self.sampling.guidance != self.model.defaults.guidance:
            return super().scales
        timesteps = self.make_scheduler().timesteps.tolist()
        return [self.sampling.guidance if step >= boundary * TIMESTEPS else low for step in timesteps]

    def start(self, layout: SampleLayout, solver: SchedulerSolver, condition: Tensor | None) -> tuple[Tensor, Any]:
        """Returns noise [C, t, h, w] as the initial state, and the conditioning input of the network.

        Args:
            layout: Layout of the sample.
            solver: Solver of the sample, which samples the noise.
            condition: Image to start from, uint8 [3, 1, H, W]; None: text only.

        Returns:
            (state, conditioning). The conditioning is None without an image, the latents [C, 1, h, w] of the image for
            a network with a timestep per frame, and otherwise (mask and latents [4 + C, t, h, w], hidden states of the
            image encoder or None).

        Raises:
            ValueError: If an image is given and the network accepts none, or if it requires one and none is given.
        """
        model = self.model
        takes_image, given = model.config.network.takes_image, layout.condition_frames
        if given > 1 or (given and "image2video" not in model.config.modes) or (takes_image and not given):
            raise ValueError(
                f"this network supports {', '.join(model.config.modes)}; a network with an image input requires "
                "exactly one image"
            )
        state, _ = super().start(layout, solver, condition)
        if condition is None:
            return state, None
        if takes_image:
            frames = 1 + (layout.latent_shape[0] - 1) * model.config.latent_grid[0]
            states = model.image_encoder.states([condition])[0] if model.config.network.image_dim else None
            return state, (model.with_first_frame_mask(model.vae.encode_first_frame(condition, frames)), states)
        return state, model.encode(condition).to(state.device)

    def extra_inputs(self, samples: Sequence[InitialState]) -> dict[str, Any]:
        import torch

        shown = [sample.shown for sample in samples]
        if self.model.config.network.takes_image:
            found: dict[str, Any] = {"image": torch.stack([image for image, _ in shown]), "both": True}
            if self.model.config.network.image_dim:
                found["image_states"] = torch.stack([states for _, states in shown])
            return found
        return {"first": shown, "both": True}

    def finish(self, sample: InitialState, state: Tensor) -> Tensor:
        return state if self.model.config.network.takes_image else replace_first_frames([sample.shown], state[None])[0]


def replace_first_frames(first: Sequence[Tensor | None], states: Tensor) -> Tensor:
    """Returns a copy of the latents `states` [n, C, t, h, w] in which clean latents replace the first frames.

    Args:
        first: Clean latents [C, 1, h, w] of the first frame of each sample; None: the sample is unchanged.
        states: Latents of all samples.
    """
    states = states.clone()
    for state, frame in zip(states, first):
        if frame is not None:
            state[:, :1] = frame
    return states
