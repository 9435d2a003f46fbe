"""Sizes of the Mixture-of-Transformers network, the released sizes, and its parameter shapes.

The field values of the released sizes are those of the released checkpoints. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, Factor, LayerCount, Length, NotNegative, PositiveFactor, Range
from worldsmith.models.weights.shapes import Shapes, linear, matrices, norm, repeat_shapes

TIMESTEP_CHANNELS = 256
"""Channels of the sinusoidal timestep embedding."""
LAYERS = "language_model.model.layers"
"""Module path of the decoder layers."""
TOWER = "_moe_gen"
"""End of the names of the generation weights' modules."""


class NetworkConfig(Config):
    """Hyperparameters of `Cosmos3Network`; the defaults are those of the Nano backbone."""

    vocab_size: Count = 151936
    """Number of rows of the token embedding and of the (unused) language head."""
    hidden_size: Count = 4096
    """Width of both residual streams."""
    intermediate_size: Count = 12288
    """Inner width of each MLP."""
    num_hidden_layers: LayerCount = 36
    """Number of decoder layers; each has an understanding and a generation parameter set."""
    num_attention_heads: Count = 32
    """Number of query heads; num_attention_heads * head_dim may differ from hidden_size."""
    num_key_value_heads: Count = 8
    """Key and value heads (grouped-query attention)."""
    head_dim: Count = 128
    """Channels per attention head."""
    rms_norm_eps: PositiveFactor = 1e-6
    """Epsilon of every RMSNorm."""
    hidden_act: Literal["silu", "relu2"] = "silu"
    """silu: gated MLP, Qwen-style RMSNorm. relu2: squared ReLU without gate, RMSNorm weight applied in fp32 (Edge)."""
    qk_norm_for_text: bool = True
    """Whether queries and keys of the understanding tower are normalized per head."""
    use_und_k_norm_for_gen: bool = False
    """Whether the generation tower applies its own RMSNorm to text keys. Requires qk_norm_for_text = false."""
    rope_theta: Annotated[float, Range(gt=1, finite=True)] = 5e6
    """Base of the rotary frequencies."""
    mrope_section: Annotated[list[NotNegative], Length(3, 3)] = field(default_factory=lambda: [24, 20, 20])
    """Number of rotary frequencies for time, height and width, interleaved; their sum is head_dim / 2."""
    attention_bias: bool = False
    """Whether the attention projections have biases; only false is supported."""
    latent_channel: Count = 48
    """Channels of a video latent."""
    latent_patch_size: Count = 2
    """Spatial patch size: side, in latents, of the square that becomes one token."""
    base_fps: Count = 24
    """Frame rate at which one latent frame advances the temporal position by exactly one."""
    enable_fps_modulation: bool = True
    """Whether temporal positions are scaled by base_fps / fps. false: each latent frame is one position."""
    unified_3d_mrope_reset_spatial_ids: bool = True
    """Whether height and width positions start at 0. false: they start at the temporal offset of the video."""
    unified_3d_mrope_temporal_modality_margin: NotNegative = 15000
    """Gap in temporal positions between the last text token and the first latent frame."""
    temporal_compression_factor: Count = 4
    """Video frames per latent frame."""
    timestep_scale: PositiveFactor = 0.001
    """Factor from timestep (0..1000) to the input of the sinusoid (0..1)."""
    action_gen: bool = False
    """Whether the network has action heads, which robot actions require. If they are trained, batches without robot
    actions give them a zero gradient."""
    max_action_dim: Count = 64
    """Max number of channels of a robot action; shorter ones are zero-padded."""
    num_embodiment_domains: Count = 32
    """Number of embodiment domains, each of which has its own weights in the action heads."""
    sound_gen: bool = False
    """Whether the network has sound heads."""
    sound_dim: Count = 64
    """Channels of a sound latent."""
    sound_latent_fps: PositiveFactor = 25.0
    """Sound latents per second."""
    initializer_range: Factor = 0.02
    """Standard deviation of the normal initialization of the understanding tower."""

    @property
    def patch_dim(self) -> int:
        """Number of elements of one latent token: patch side squared times latent channels."""
        return self.latent_patch_size**2 * self.latent_channel

    def check(self) -> None:
        """Raises WrongValueError if fields of this config contradict each other."""
        if self.num_attention_heads % self.num_key_value_heads:
            names = "num_attention_heads", "num_key_value_heads"
            raise wrong(self, *names, why="the first must be a multiple of the second")
        if self.head_dim % 2:
            raise wrong(self, "head_dim", allowed="an even number")
        slots = self.head_dim // 2
        if sum(self.mrope_section) != slots:
            raise wrong(self, "mrope_section", "head_dim", why=f"the sections must sum to head_dim / 2 = {slots}")
        for axis in (1, 2):  # slots axis, axis + 3, … belong to height (1) and width (2)
            if self.mrope_section[axis] and axis + 3 * (self.mrope_section[axis] - 1) >= slots:
                raise wrong(
                    self,
                    "mrope_section",
                    why=f"they cannot be interleaved in {slots} slots: the height and width sections must not be "
                    "longer than the time section",
                )
        if self.use_und_k_norm_for_gen and self.qk_norm_for_text:
            names = "use_und_k_norm_for_gen", "qk_norm_for_text"
            raise wrong(
                self,
                *names,
                why="the first normalizes text keys that are not normalized yet",
                remedy="set qk_norm_for_text = false",
            )
        if self.attention_bias:
            raise wrong(
                self, "attention_bias", why="a bias in attention is not supported for Cosmos3", remedy="leave it false"
            )


def edge() -> NetworkConfig:
    """Returns the network config of Cosmos3-Edge: 2B Nemotron-style backbone (3.37 B parameters with all heads)."""
    return NetworkConfig(
        vocab_size=131072, hidden_size=2048, intermediate_size=9216, num_hidden_layers=28, num_attention_heads=16,
        rms_norm_eps=1e-5, hidden_act="relu2", qk_norm_for_text=False, use_und_k_norm_for_gen=True, rope_theta=1e8,
    )  # fmt: skip


def nano() -> NetworkConfig:
    """Returns the network config of Cosmos3-Nano: Qwen3-VL-8B backbone (15.17 B parameters with all heads)."""
    return NetworkConfig()


def super_() -> NetworkConfig:
    """Returns the network config of Cosmos3-Super: Qwen3-VL-32B backbone (64.02 B parameters with all heads)."""
    return NetworkConfig(hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64)


def tiny(*, vocab_size: int = 4096, edge_style: bool = False) -> NetworkConfig:
    """Returns a tiny network config for a CPU (about 12 M parameters) with the same code path as the released sizes.

    Args:
        vocab_size: Rows of the token embedding.
        edge_style: Whether to use the MLP and norms of Edge.
    """
    network = NetworkConfig(
        vocab_size=vocab_size, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, mrope_section=[12, 10, 10],
    )  # fmt: skip
    if edge_style:
        network.hidden_act, network.rms_norm_eps, network.rope_theta = "relu2", 1e-5, 1e8
        network.qk_norm_for_text, network.use_und_k_norm_for_gen = False, True
    return network


def parameter_shapes(config: NetworkConfig) -> Shapes:
    """Returns the shape of every parameter of `Cosmos3Network` by name: both towers and the configured heads."""
    hidden, words = config.hidden_size, (config.vocab_size, config.hidden_size)
    action, domains = config.max_action_dim, config.num_embodiment_domains
    model, shapes = "language_model.model", Shapes()
    if config.action_gen:
        shapes |= {"action_modality_embed": (hidden,)}
    if config.sound_gen:
        shapes |= {"sound_modality_embed": (hidden,)}
    shapes |= {f"{model}.embed_tokens.weight": words, **repeat_shapes(LAYERS, config.num_hidden_layers, _layer(config))}
    shapes |= norm(f"{model}.norm", hidden) | norm(f"{model}.norm_moe_gen", hidden)
    shapes |= {"language_model.lm_head.weight": words}
    shapes |= linear("vae2llm", config.patch_dim, hidden) | linear("llm2vae", hidden, config.patch_dim)
    shapes |= linear("time_embedder.mlp.0", TIMESTEP_CHANNELS, hidden) | linear("time_embedder.mlp.2", hidden, hidden)
    if config.action_gen:
        for head, outputs in (("action2llm", hidden), ("llm2action", action)):
            shapes |= {f"{head}.fc.weight": (domains, action * hidden), f"{head}.bias.weight": (domains, outputs)}
    if config.sound_gen:
        shapes |= linear("sound2llm", config.sound_dim, hidden) | linear("llm2sound", hidden, config.sound_dim)
    return shapes


def adaptable_layers(shapes: Shapes) -> list[str]:
    """Returns the paths of the linear layers for which LoRA adapters can be trained.

    Not included are the language head and the sound heads, which receive no gradients, the time embedder, which always
    computes in float32, and the action heads, which are no linear layers.

    Args:
        shapes: Shape of every parameter by internal name.
    """
    ends = "vae2llm", "llm2vae"
    return [path for path in matrices(shapes) if path.startswith(f"{LAYERS}.") or path in ends]


def names_without_gradients(config: NetworkConfig) -> list[str]:
    """Returns name prefixes of parameters that receive no gradients: unused heads, and the last layer's text half."""
    last = f"{LAYERS}.{config.num_hidden_layers - 1}"
    inside = ("self_attn.q_proj.", "self_attn.o_proj.", "self_attn.q_norm.", "mlp.", "post_attention_layernorm.")
    ends = ("language_model.model.norm.", "language_model.lm_head.", "sound", "llm2sound")
    return [*(f"{last}.{part}" for part in inside), *ends]


def _layer(config: NetworkConfig) -> Shapes:
    """Returns the parameter shapes of one decoder layer by name inside the layer, for both towers."""
    hidden, head, inside = config.hidden_size, config.head_dim, config.intermediate_size
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes, towers = Shapes(), ("", "_moe_gen")
    for tower in towers:
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            shapes |= linear(f"self_attn.{part}_proj{tower}", hidden, width, bias=False)
        shapes |= linear(f"self_attn.o_proj{tower}", queries, hidden, bias=False)
    for tower in towers:
        if tower or config.qk_norm_for_text:
            shapes |= norm(f"self_attn.q_norm{tower}", head) | norm(f"self_attn.k_norm{tower}", head)
    if config.use_und_k_norm_for_gen:
        shapes |= norm("self_attn.k_norm_und_for_gen", head)
    for tower in towers:
        for part in ("gate", "up") if config.hidden_act == "silu" else ("up",):
            shapes |= linear(f"mlp{tower}.{part}_proj", hidden, inside, bias=False)
        shapes |= linear(f"mlp{tower}.down_proj", inside, hidden, bias=False)
    for place in ("input", "post_attention"):
        for tower in towers:
            shapes |= norm(f"{place}_layernorm{tower}", hidden)
    return shapes
