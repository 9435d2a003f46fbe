"""The Cosmos3-style video generator: network, video VAE and text tokenizer in one component, and its sampler."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count
from worldsmith.distributed.degrees import check_heads
from worldsmith.families.cosmos3.attention.modes import (
    AttentionModes,
    NeighborhoodConfig,
    attention_modes,
    check_device,
    describe_modes,
)
from worldsmith.families.cosmos3.network.architecture import (
    LAYERS,
    NetworkConfig,
    adaptable_layers,
    names_without_gradients,
    parameter_shapes,
)
from worldsmith.families.cosmos3.robot_actions import ACTION_NOISE_STREAM
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.families.diffusers_pipeline.sampling import SchedulerSolver, make_unipc_scheduler
from worldsmith.models.model import Model
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.real_values import real_values
from worldsmith.models.video_model import (
    MODES,
    NOISE_LEVELS,
    GenerationDefaults,
    InitialState,
    Mode,
    Predict,
    SampleLayout,
    Sampling,
    VideoSampler,
)
from worldsmith.models.video_vae.wan import SPATIAL_FACTOR, TEMPORAL_FACTOR, WanVAE
from worldsmith.models.weights.shapes import Shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.families.cosmos3.network.network import Cosmos3Network
    from worldsmith.families.cosmos3.network.sequence import PackedSequence

logger = logging.getLogger(__name__)

IMAGE_STEPS, IMAGE_GUIDANCE, IMAGE_FPS = 50, 4.0, 24.0
"""Default solver steps, guidance scale and fps of the released models for a single image."""


@dataclass(frozen=True, slots=True)
class Cosmos3Defaults(GenerationDefaults):
    """Default generation settings of Cosmos3 models, which sample with UniPC."""

    refused: ClassVar[Mapping[str, str]] = {
        "scheduler": "Cosmos3 always uses UniPC",
        "dynamic_guidance": "Cosmos3 uses the same guidance scale at every step",
        "strength": "conditioning frames are kept unchanged (condition_frame_indexes_vision sets their number)",
    }

    def image_defaults(self) -> GenerationDefaults:
        return replace(
            self,
            steps=IMAGE_STEPS,
            guidance=IMAGE_GUIDANCE,
            shift=self.shift if self.image_shift is None else self.image_shift,
            fps=IMAGE_FPS if self.fps is None else self.fps,
        )


class Cosmos3Generator(Model):
    """Cosmos3-style video generator: a Mixture-of-Transformers network from captions to video latents.

    VAE and tokenizer are loaded on first use.

    Args:
        config: Config of the model.
        device: Device of the network, such as "cuda:0".
        seed: Seed of the initial weights; None: they stay uninitialized.
        defaults: Generation defaults that earlier training stored; None: `Cosmos3Defaults()`.
    """

    class Config(Model.Config):
        family: ClassVar[str] = "cosmos3"
        task: ClassVar[str] = "vfm"
        makes: ClassVar[str] = "videos"
        layer_lists: ClassVar[Sequence[str]] = (LAYERS,)
        full_precision: ClassVar[Sequence[str]] = ("time_embedder",)

        max_num_tokens_after_packing: Count = 13312
        """Max number of tokens of a packed sequence, in the data loader and in a forward pass of sampling."""
        joint_attn_implementation: Literal["two_way", "three_way", "flex"] = "two_way"
        """two_way: dense attention. three_way: the attention of latents may be restricted to neighborhoods. flex: as
        two_way, computed by one FlexAttention kernel (CUDA only)."""
        natten_parameter_list: list[dict[str, NeighborhoodConfig]] = field(default_factory=list)
        """three_way only: per layer, neighborhoods by number of grid axes longer than 1 ("1d", "2d",
        "3d"). Empty: dense."""
        video_temporal_causal: bool = False
        """three_way only: latents attend only to the same and earlier frames."""
        lora_target_modules: str = "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen"
        """Linear layers with LoRA adapters, comma-separated: ends of module paths, such as "mlp.up_proj"."""
        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Network sizes."""
        tokenizer: WanVAE.Config = field(default_factory=WanVAE.Config)
        """The video VAE."""
        text_tokenizer: TextTokenizer.Config = field(default_factory=TextTokenizer.Config)
        """The caption tokenizer."""

        @property
        def modes(self) -> tuple[Mode, ...]:
            return MODES

        @property
        def action_limits(self) -> tuple[int, int] | None:
            network = self.network
            return (network.max_action_dim, network.num_embodiment_domains) if network.action_gen else None

        @property
        def latent_grid(self) -> tuple[int, int, int]:
            """Compression and patch size: frames per latent frame, pixels per latent, latents per token (each side)."""
            return TEMPORAL_FACTOR, SPATIAL_FACTOR, self.network.latent_patch_size

        def check(self) -> None:
            read_attention(self)
            recompute = self.activation_checkpointing
            if self.joint_attn_implementation == "flex" and "selective" in (recompute.mode, recompute.other_layers):
                both = "joint_attn_implementation", "activation_checkpointing.mode"
                why = "FlexAttention is one compiled kernel, whose output this mode cannot save"
                raise wrong(self, *both, why=why, remedy="use mode = 'full' or 'none', or 'two_way'")
            super().check()
            if self.parallelism.cfg_parallel_shard_degree != 1:
                why = "only sampling has two guidance branches, training has one"
                remedy = "write 1, and use context_parallel_shard_degree to shard a packed sequence"
                raise wrong(self, "parallelism.cfg_parallel_shard_degree", why=why, remedy=remedy)

        def check_context(self, ranks: int) -> None:
            check_heads(ranks, self.network.num_attention_heads, self.network.num_key_value_heads)

        def check_device(self, device: str) -> None:
            check_device(self.joint_attn_implementation, device)

        def shapes(self) -> Shapes:
            return parameter_shapes(self.network)

        def adaptable_layers(self) -> list[str]:
            return adaptable_layers(self.shapes())

        def names_without_gradients(self) -> list[str]:
            return names_without_gradients(self.network)

    config: Config
    network: Cosmos3Network

    def __init__(
        self,
        config: Config,
        *,
        device: str | torch.device = "cpu",
        seed: int | None = None,
        defaults: GenerationDefaults | None = None,
    ) -> None:
        self.defaults = defaults or Cosmos3Defaults()
        super().__init__(config, device=device, seed=seed)

    def make_network(self) -> Cosmos3Network:
        from worldsmith.families.cosmos3.network.network import Cosmos3Network

        return Cosmos3Network(self.config.network, read_attention(self.config))

    def parts(self) -> NetworkParts:
        from worldsmith.families.cosmos3.network.layers import HALVES, PIECES, TOKENWISE

        network, language = self.network, self.network.language_model
        layers = list(language.model.layers)
        return NetworkParts(
            layers=layers,
            compiled=TOKENWISE,
            recomputed=HALVES,
            recomputed_pieces=PIECES,
            units=[language.model.embed_tokens],
            full_precision=[network.time_embedder],
            unused=[language.lm_head],
            entries={network: ("read_text", "text_states"), **dict.fromkeys(layers, ("read_text",))},
            share_tokens=partial(setattr, network, "share_tokens"),
        )

    def init_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        from worldsmith.families.cosmos3.network.network import init_weights

        init_weights(self.network, seed, names)

    def materialize(self, device: str | torch.device) -> None:
        super().materialize(device)
        if self.config.joint_attn_implementation != "two_way" and self.device.type != "meta":
            logger.info("attention: %s", describe_modes(self.network.attention))

    @property
    def attention_heads(self) -> tuple[int, int, int]:
        network = self.config.network
        return network.num_attention_heads, network.num_key_value_heads, network.head_dim

    @cached_property
    def vae(self) -> WanVAE:
        return self.config.tokenizer.build(device=self.device)

    @cached_property
    def text_tokenizer(self) -> TextTokenizer:
        """The caption tokenizer, loaded on first use.

        Raises:
            ValueError: If a token id is outside of the network's embedding table.
        """
        tokenizer: TextTokenizer = self.config.text_tokenizer.build()
        tokenizer.check_vocab_size(self.config.network.vocab_size)
        return tokenizer

    def tokenize(self, caption: str) -> list[int]:
        """Returns the token ids of a caption in the chat template; `pack` appends those of EOS and vision-start."""
        return self.text_tokenizer.encode(caption)

    def encode(self, video: Tensor) -> Tensor:
        """Encodes a uint8 video [3, T, H, W], T = 4k+1, to normalized latents [C, (T-1)/4+1, H/16, W/16], float32."""
        return self.vae.encode(video)

    def decode(self, latents: Tensor) -> Tensor:
        """Decodes normalized latents [C, t, h, w] to a uint8 video [3, 4(t-1)+1, 16h, 16w]."""
        return self.vae.decode(latents)

    def pack(self, layouts: Sequence[SampleLayout]) -> PackedSequence:
        """Returns the layout of several samples packed into one sequence, on the model's device."""
        from worldsmith.tasks.device_copy import move_tensors

        return move_tensors(self.plan_pack(layouts), self.device)

    def plan_pack(self, layouts: Sequence[SampleLayout]) -> PackedSequence:
        """Returns the layout of several samples packed into one sequence, on the CPU.

        Raises:
            ValueError: If `layouts` is empty, or a layout does not fit the network.
            UserError: If an attention neighborhood does not fit a sample.
        """
        from worldsmith.families.cosmos3.network.sequence import pack_samples

        return pack_samples(
            layouts,
            self.config.network,
            eos_id=self.text_tokenizer.eos_id,
            vision_start_id=self.text_tokenizer.vision_start_id,
            attention=self.network.attention,
            device=self.device,
        )

    def num_tokens(self, layout: SampleLayout) -> int:
        """Returns the number of tokens of a packed sample: text with EOS and vision-start, latents, robot actions."""
        from worldsmith.families.cosmos3.network.sequence import ADDED_TOKENS, count_rows, token_grid

        latents = math.prod(token_grid(layout.latent_shape, self.config.network))
        return len(layout.text_ids) + ADDED_TOKENS + latents + sum(count_rows([layout]))

    def sampler(self, sampling: Sampling) -> VideoSampler:
        return Cosmos3Sampler(self, sampling)

    @property
    def latent_grid(self) -> tuple[int, int, int]:
        return self.config.latent_grid

    @property
    def latent_channels(self) -> int:
        return self.config.network.latent_channel

    @property
    def max_tokens(self) -> int:
        return self.config.max_num_tokens_after_packing

    @property
    def latent_fingerprint(self) -> str:
        """Hash of everything in the VAE that affects latents: weights, config and precision."""
        return self.vae.fingerprint


def read_attention(config: Cosmos3Generator.Config) -> AttentionModes:
    """Returns the attention patterns of all layers, from the attention settings in a model config.

    Raises:
        ValueError: If settings have no effect or contradict each other.
    """
    return attention_modes(
        config.joint_attn_implementation,
        config.network.num_hidden_layers,
        config.natten_parameter_list,
        config.video_temporal_causal,
    )


class Cosmos3Sampler(VideoSampler):
    """Sampler of Cosmos3 models with UniPC; one packed sequence can contain videos and images of different sizes."""

    model: Cosmos3Generator

    @real_values()
    def make_scheduler(self) -> Any:
        """Builds the UniPC scheduler of diffusers with the noise levels of the released models.

        The noise levels are equidistant from 0.999 to 0 (exclusive), shifted, and end with 0.

        Raises:
            ValueError: If the shift of the noise schedule is not known.
        """
        import numpy as np

        shift = self.sampling.shift
        if shift is None:
            raise ValueError(
                "the shift of the model's noise schedule is unknown. Set shift (released models: 3 at resolution 256, "
                "10 at 720)"
            )
        scheduler = make_unipc_scheduler(shift)
        scheduler.set_timesteps(sigmas=np.linspace(1 - 1 / NOISE_LEVELS, 0, self.sampling.steps + 1)[:-1])
        return scheduler

    @cached_property
    def timesteps(self) -> list[int]:
        """Timestep of the network at each solver step: 1000·σ, rounded down."""
        return self.make_scheduler().timesteps.tolist()

    def text_ids(self, text: str, *, dropped: bool) -> Sequence[int]:
        return self.model.tokenize(text)

    def num_tokens(self, layout: SampleLayout) -> int:
        return self.model.num_tokens(layout)

    def begin(
        self, conditional: SampleLayout, unconditional: SampleLayout, *, seed: int, condition: Tensor | None
    ) -> InitialState:
        """Returns the initial state of a sample: noise, in which conditioning frames replace the first latent frames.

        Args:
            conditional: Layout of the sample with its caption.
            unconditional: Layout of the sample for the unconditional guidance branch.
            seed: Seed of the noise.
            condition: Conditioning frames, uint8 [3, T, H, W]; None: text only.
        """
        import torch

        frames, height, width = conditional.latent_shape
        start = seeded_noise(seed, self.latent_size(conditional)).to(self.model.device)
        if condition is not None:  # with robot actions, it may be padded at the bottom and right
            start[:, : conditional.condition_frames] = self.model.encode(condition)[..., :height, :width]
        clean = (torch.arange(frames, device=start.device) < conditional.condition_frames)[:, None, None]
        return InitialState(start, CleanValuesSolver(self.make_scheduler(), start, clean), conditional, unconditional)

    def latent_size(self, layout: SampleLayout) -> tuple[int, int, int, int]:
        return (self.model.config.network.latent_channel, *layout.latent_shape)

    def add_actions(self, sample: InitialState, rows: Tensor, *, seed: int) -> InitialState:
        """Returns the state as a vector of the latents and robot actions; UniPC treats each number separately."""
        import torch

        assert sample.conditional.actions is not None
        assert isinstance(sample.solver, CleanValuesSolver)
        given = rows.float().to(self.model.device)
        noise = seeded_noise(seed, tuple(rows.shape), stream=(ACTION_NOISE_STREAM,)).to(given.device)
        is_given = torch.arange(len(rows), device=given.device) < sample.conditional.actions.clean_rows
        clean = is_given[:, None].expand_as(given)
        state = torch.cat((sample.state.flatten(), torch.where(clean, given, noise).flatten()))
        clean = torch.cat((sample.solver.clean.expand_as(sample.state).flatten(), clean.flatten()))
        return replace(sample, state=state, solver=CleanValuesSolver(self.make_scheduler(), state, clean))

    def split_state(self, layout: SampleLayout, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the latents [C, t, h, w] and the robot actions [rows, channels] (None: it has none) of a state."""
        if layout.actions is None:
            return state, None
        size = self.latent_size(layout)
        latents, rows = state.split([math.prod(size), layout.actions.rows * layout.actions.channels])
        return latents.view(size), rows.view(layout.actions.rows, layout.actions.channels)

    def finish(self, sample: InitialState, state: Tensor) -> Tensor:
        return self.split_state(sample.conditional, state)[0]

    def finish_actions(self, sample: InitialState, state: Tensor) -> Tensor:
        _, rows = self.split_state(sample.conditional, state)
        assert rows is not None
        return rows

    def predictor(self, samples: Sequence[InitialState], branches: Sequence[int]) -> Predict:
        import torch
        from torch.nn.functional import pad

        layouts = [(s.conditional, s.unconditional)[branch] for branch in branches for s in samples]
        channels = self.model.config.network.max_action_dim
        pack = self.model.pack(layouts)
        memory = self.model.network.read_text(pack)

        def velocities(states: list[Tensor], step: int) -> list[Tensor]:
            timestep = float(self.timesteps[step])
            timesteps = torch.full((len(layouts),), timestep, device=self.model.device)
            latents, actions = zip(*map(self.split_state, layouts, states), strict=True)
            rows = [pad(own, (0, channels - own.shape[1])) for own in actions if own is not None]
            found: list[Tensor] = self.model.network(
                pack, latents, timesteps, memory, torch.cat(rows) if rows else None
            )
            if not rows:
                return found
            answers = iter(found[-1].split([len(own) for own in rows]))
            return [
                velocity if own is None else torch.cat((velocity.flatten(), next(answers)[:, : own.shape[1]].flatten()))
                for velocity, own in zip(found, actions)
            ]

        return velocities


class CleanValuesSolver(SchedulerSolver):
    """Diffusion solver of one sample that restores clean values (conditioning frames, given actions) after each step.

    Args:
        scheduler: UniPC scheduler of diffusers.
        start: Initial state of the sample.
        clean: Mask that is True at clean values, broadcastable to the shape of `start`.
    """

    def __init__(self, scheduler: Any, start: Tensor, clean: Tensor) -> None:
        import torch

        super().__init__(scheduler, torch.Generator())
        self.start, self.clean = start, clean

    def step(self, answer: Tensor, state: Tensor) -> Tensor:
        # The velocity of clean values is 0, so this only removes the solver's rounding.
        return super().step(answer, state).where(~self.clean, self.start)


def seeded_noise(seed: int, shape: tuple[int, ...], *, stream: tuple[int, ...] = ()) -> Tensor:
    """Returns standard normal float32 noise that depends only on the arguments.

    It is sampled with numpy's Philox generator, which gives the same values on every CPU.

    Args:
        seed: Seed of the sample.
        shape: Shape of the noise.
        stream: Number of the random stream; (): that of the latents.
    """
    import numpy as np
    import torch

    values = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=stream)))
    return torch.from_numpy(values.standard_normal(shape, dtype=np.float32))
