"""The Cosmos3-style video generator: network, video VAE and text tokenizer in one component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from worldsmith.config import Configurable
from worldsmith.config.ranges import Count
from worldsmith.config.sections import ActivationCheckpointingConfig, CompileConfig, ParallelismConfig
from worldsmith.models.cosmos3.architecture import NetworkConfig
from worldsmith.models.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.ema import PowerEMA
from worldsmith.models.video_vae.wan import WanVAE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.models.cosmos3.sequence import PackedSequence, SampleLayout


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a model saw in training, as defaults for generating with it. None: not known."""

    height: int | None = None
    """Pixels."""
    width: int | None = None
    """Pixels."""
    num_frames: int | None = None
    """Frames of a clip, 4k+1."""
    fps: float | None = None
    """Frames per second that the network and the text are told."""
    shift: float | None = None
    """Shift of the noise schedule at this size."""
    steps: int = 35
    """Sampling steps."""
    guidance: float = 6.0
    """Scale of classifier-free guidance; 1 turns it off."""
    append_duration_fps: bool = False
    """Whether plain captions were followed by the sentence on duration and frame rate."""
    append_resolution: bool = False
    """Whether plain captions were followed by the sentence on height and width."""
    caption_suffix: str = ""
    """Text between a plain caption and those sentences."""
    unconditional_keeps_metadata: bool = False
    """Whether captions dropped in training kept those sentences."""
    max_caption_tokens: int | None = None
    """Chat-templated ids past this number were cut."""


class Cosmos3Generator(Configurable):
    """A Mixture-of-Transformers network that turns captions into video latents, with what surrounds it.

    The network is built on `device`, float32, and gets its first weights from `seed` (None: left uninitialised, for a
    caller that loads weights next). VAE and tokenizer are loaded when they are first used. `defaults` say how to
    generate with weights that were trained before.
    """

    class Config(Configurable.Config):
        precision: Literal["bfloat16", "float32"] = "bfloat16"
        """Number format in which the network computes; the weights that training changes are float32 in any case."""
        max_num_tokens_after_packing: Count = 13312
        """Most tokens of one packed sequence: what the loader fills and what sampling puts into one forward pass."""
        joint_attn_implementation: Literal["two_way", "three_way", "flex"] = "two_way"
        """How text and vision tokens attend to each other."""
        lora_enabled: bool = False
        """Train low-rank adapters instead of the weights themselves."""
        lora_rank: Count = 16
        """Rank of the adapters."""
        lora_alpha: int = 32
        """The adapters' output is scaled by lora_alpha / lora_rank."""
        lora_target_modules: str = "q_proj_moe_gen,k_proj_moe_gen,v_proj_moe_gen,o_proj_moe_gen"
        """Names of the linear layers that get an adapter, comma-separated."""
        network: NetworkConfig = field(default_factory=NetworkConfig)
        """Sizes of the network."""
        ema: PowerEMA.Config = field(default_factory=PowerEMA.Config)
        """The running average of the weights that export and sampling prefer."""
        parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
        """How the work is divided among processes."""
        compile: CompileConfig = field(default_factory=CompileConfig)
        """torch.compile of the layers."""
        activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
        """What is recomputed in the backward pass to save memory."""
        tokenizer: WanVAE.Config = field(default_factory=WanVAE.Config)
        """The video VAE."""
        text_tokenizer: TextTokenizer.Config = field(default_factory=TextTokenizer.Config)
        """The caption tokenizer."""

        def check(self) -> None:
            parallel = self.parallelism
            only: tuple[tuple[str, object, object], ...] = (
                ("joint_attn_implementation", self.joint_attn_implementation, "two_way"),
                ("lora_enabled", self.lora_enabled, False),
                ("compile.enabled", self.compile.enabled, False),
                ("parallelism.context_parallel_shard_degree", parallel.context_parallel_shard_degree, 1),
                ("parallelism.cfg_parallel_shard_degree", parallel.cfg_parallel_shard_degree, 1),
            )
            for option, found, works in only:
                if found != works:
                    raise ValueError(
                        f"{option} = {found!r} does not work yet; in this version it can only be {works!r}"
                    )

    def __init__(
        self,
        config: Config,
        *,
        device: str | torch.device = "cpu",
        seed: int | None = None,
        defaults: GenerationDefaults | None = None,
    ):
        import torch

        from worldsmith.models.cosmos3.network import Cosmos3Network

        config.check()
        self.config = config
        self.defaults = defaults or GenerationDefaults()
        self.device = torch.device(device)
        with torch.device("meta"):
            self.network = Cosmos3Network(config.network, config.joint_attn_implementation)
        self.network.to_empty(device=self.device)
        if seed is not None:
            self.network.init_weights(torch.Generator().manual_seed(seed))

    @cached_property
    def vae(self) -> WanVAE:
        vae: WanVAE = self.config.tokenizer.build(device=self.device)
        return vae

    @cached_property
    def text_tokenizer(self) -> TextTokenizer:
        """Raises ValueError when the tokenizer makes ids that the network's embedding table lacks."""
        tokenizer: TextTokenizer = self.config.text_tokenizer.build()
        tokenizer.check_vocab_size(self.config.network.vocab_size)
        return tokenizer

    def tokenize(self, caption: str) -> list[int]:
        """Chat-templated ids of a caption, without the EOS and vision-start ids that `pack` appends."""
        return self.text_tokenizer.encode(caption)

    def encode(self, video: Tensor) -> Tensor:
        """uint8 video [3, T, H, W], T = 4k+1, to normalised latents [C, (T-1)/4+1, H/16, W/16], float32."""
        return self.vae.encode(video)

    def decode(self, latents: Tensor) -> Tensor:
        """Normalised latents [C, t, h, w] to a uint8 video [3, 4(t-1)+1, 16h, 16w]."""
        return self.vae.decode(latents)

    def pack(self, layouts: Sequence[SampleLayout]) -> PackedSequence:
        """One packed sequence out of many samples, on the generator's device."""
        from worldsmith.models.cosmos3.sequence import pack_samples

        return pack_samples(
            layouts,
            self.config.network,
            eos_id=self.text_tokenizer.eos_id,
            vision_start_id=self.text_tokenizer.vision_start_id,
            device=self.device,
        )

    @property
    def latent_fingerprint(self) -> str:
        """Changes with everything in the VAE that changes latents: weights, config and precision."""
        return self.vae.fingerprint
