"""`Cosmos3Network`: the packed Mixture-of-Transformers that predicts the velocity of noisy video latents.

Parameter names are those of the released checkpoints (`language_model.model.layers.0.self_attn.q_proj_moe_gen.weight`,
`vae2llm.weight`, …), so that name filters and checkpoints mean the same here. There are no buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldsmith.families.cosmos3.attention.modes import AttentionModes, attention_modes, describe_modes
from worldsmith.families.cosmos3.network.architecture import TIMESTEP_CHANNELS, TOWER, NetworkConfig
from worldsmith.families.cosmos3.network.layers import MoTDecoderLayer, TextMemory, stream_norm
from worldsmith.families.cosmos3.network.rope import rotary_tables
from worldsmith.families.cosmos3.network.sequence import Geometry, PackedSequence, TokenSharding, unsharded
from worldsmith.models.fill_parameters import chosen, fill, seed_of
from worldsmith.models.lora import init_adapter, is_adapter
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import in_simulation

HEADS = ("vae2llm", "llm2vae", "time_embedder", "action2llm", "llm2action", "sound2llm", "llm2sound")


class Cosmos3Network(nn.Module):
    """Network that predicts velocities of noisy video latents from text and latents, for any number of packed samples.

    With action heads (`action_gen`), samples may have robot actions, which are noised and predicted like latents. Sound
    heads exist (in the state dict) if the config enables them; `forward` does not use them.

    Args:
        config: Config of the network.
        attention: Attention patterns of the layers; None: two_way (dense attention).
    """

    def __init__(self, config: NetworkConfig, attention: AttentionModes | None = None) -> None:
        super().__init__()
        config.check()
        self.config = config
        self.attention = attention or attention_modes("two_way", config.num_hidden_layers)
        self.share_tokens: Callable[[int], TokenSharding] = unsharded
        """Function from a number of tokens to their distribution over ranks; context parallelism replaces it."""
        hidden, patch_dim = config.hidden_size, config.patch_dim
        self.language_model = LanguageModel(config, self.attention.layers)
        self.vae2llm = nn.Linear(patch_dim, hidden)
        self.llm2vae = nn.Linear(hidden, patch_dim)
        self.time_embedder = TimestepEmbedder(hidden)
        if config.action_gen:
            self.action2llm = DomainAwareLinear(config.max_action_dim, hidden, config.num_embodiment_domains)
            self.llm2action = DomainAwareLinear(hidden, config.max_action_dim, config.num_embodiment_domains)
            self.action_modality_embed = nn.Parameter(torch.zeros(hidden))
        if config.sound_gen:
            self.sound2llm = nn.Linear(config.sound_dim, hidden)
            self.llm2sound = nn.Linear(hidden, config.sound_dim)
            self.sound_modality_embed = nn.Parameter(torch.zeros(hidden))

    @property
    def stream_dtype(self) -> torch.dtype:
        """Dtype of both residual streams: that of autocast if it is enabled, else that of the weights."""
        weight = self.vae2llm.weight
        kind = weight.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype

    def forward(
        self,
        pack: PackedSequence,
        latents: Sequence[Tensor],
        timesteps: Tensor,
        text_memory: Sequence[TextMemory] | None = None,
        actions: Tensor | None = None,
    ) -> list[Tensor]:
        """Predicts the velocity of every sample; with context parallelism or sharded weights a collective call.

        Args:
            pack: Layout of the samples.
            latents: Noisy latents [C, t, h, w] of each sample; conditioning frames must contain their clean latents.
            timesteps: 1000 * sigma of each sample, [n].
            text_memory: (keys, values) of the text in each layer, from `read_text` for this pack; None: they are
                computed by the understanding tower.
            actions: Robot actions of all samples, float32 [rows, max_action_dim], zero at unused channels; noised rows
                contain noisy values, clean rows the given values. None: no sample has robot actions.

        Returns:
            Velocity [C, t, h, w] of each sample, float32, exactly 0 at conditioning frames. If the pack has robot
            actions, one more tensor follows: their velocities [rows, max_action_dim], exactly 0 at clean rows and
            unused channels.

        Raises:
            ValueError: If latents, timesteps or actions do not fit the pack.
        """
        self.check_patterns(pack)
        check_inputs(pack, latents, timesteps, self.config.latent_channel)
        check_action_values(pack, actions, self.config.max_action_dim)
        model = self.language_model.model
        geometry = self.geometry(pack)
        gen = self.embed_latents(pack, latents, timesteps, geometry.gen_share, actions)
        und = self.embed_text(pack, geometry.und_share) if text_memory is None else None
        for index, layer in enumerate(model.layers):
            memory = None if text_memory is None else text_memory[index]
            und, gen = layer(und, gen, geometry, memory, last=index == len(model.layers) - 1)
        return self.read_velocity(pack, model.norm_moe_gen(gen), geometry.gen_share)

    def check_patterns(self, pack: PackedSequence) -> None:
        """Raises ValueError if the attention plans of `pack` do not belong to the attention patterns of this network.

        An attention pattern defines to which latents of its sample a latent token attends (all, those of the same
        and earlier frames, or a neighborhood). An attention plan is the precomputed kernel input of one pattern for one
        pack.

        Args:
            pack: Packed samples; `pack_samples` built the attention plans for `pack.patterns`.
        """
        if pack.patterns != self.attention.patterns:
            raise ValueError(
                f"the attention plans of the pack are for {len(pack.patterns)} patterns that differ from the network's "
                f"({describe_modes(self.attention)}); pass the network's `attention` to pack_samples"
            )

    def geometry(self, pack: PackedSequence) -> Geometry:
        """Returns the positions and attention plans of a pack, with rotary tables for this rank's tokens."""
        shares = (self.share_tokens(length) for length in (len(pack.text_ids), len(pack.timestep_rows)))
        und_rotary, gen_rotary = (
            rotary_tables(positions, self.config.head_dim, self.config.rope_theta, self.config.mrope_section)
            for positions in (pack.und_positions, pack.gen_positions)
        )
        geometry = Geometry(und_rotary, gen_rotary, pack.und_segments, pack.gen_plans)
        return geometry.to(self.stream_dtype).shared(*shares)

    def embed_text(self, pack: PackedSequence, share: TokenSharding) -> Tensor:
        """Embeds this rank's shard of the text tokens of a pack; returns [text tokens of the rank, hidden].

        `share` is the distribution of the text tokens over ranks.
        """
        return self.language_model.model.embed_tokens(share.shard(pack.text_ids)).to(self.stream_dtype)

    def embed_latents(
        self,
        pack: PackedSequence,
        latents: Sequence[Tensor],
        timesteps: Tensor,
        share: TokenSharding,
        actions: Tensor | None = None,
    ) -> Tensor:
        """Embeds this rank's shard of the latent stream; clean frames and action rows get no timestep embedding.

        Args:
            pack: Layout of the samples.
            latents: Noisy latents [C, t, h, w] of each sample.
            timesteps: 1000 * sigma of each sample, [n].
            share: Distribution of the latent tokens over ranks.
            actions: Robot actions of all samples [rows, max_action_dim].

        Returns:
            Embeddings [latent tokens of the rank, hidden].
        """
        patches = [patchify(latent, self.config.latent_patch_size) for latent in latents]
        if actions is not None:  # zeros, until the embedded actions replace them
            patches = [F.pad(own, (0, 0, 0, rows)) for own, rows in zip(patches, pack.action_rows)]
        tokens = self.vae2llm(share.shard(torch.cat(patches)).to(self.stream_dtype))
        embedded = self.time_embedder(timesteps.float() * self.config.timestep_scale)
        if pack.actions is not None and actions is not None:
            rows = self.action2llm(actions.to(tokens.dtype), pack.actions.domains, pack.actions.used_domains)
            tokens = share.place(tokens, pack.actions.tokens, (rows + self.action_modality_embed).to(tokens.dtype))
        elif self.trains_actions:
            rows = self.action2llm.of_no_rows(tokens) + self.action_modality_embed
            embedded = embedded + rows.sum(0)  # zero, with a zero gradient
        # Row n, which tokens of clean frames and rows select, is zero: they carry no timestep at all.
        embedded = torch.cat((embedded, embedded.new_zeros(1, embedded.shape[1])))
        # One row gets its gradient from thousands of tokens; CUDA would round every one of those sums to bfloat16.
        rows = embedded.float().index_select(0, share.shard(pack.timestep_rows, fill=len(pack.layouts)))
        return tokens + rows.to(tokens.dtype)

    def read_velocity(self, pack: PackedSequence, gen: Tensor, share: TokenSharding) -> list[Tensor]:
        """Projects the final latent stream to velocities and gathers the shards of all ranks (collective call).

        Args:
            pack: Layout of the samples.
            gen: This rank's shard of the final latent stream, [latent tokens of the rank, hidden].
            share: Distribution of the latent tokens over ranks.

        Returns:
            Velocity [C, t, h, w] of each sample, and of all robot actions [rows, max_action_dim] if there are any;
            float32.
        """
        velocity = share.gather(self.llm2vae(gen).float()).masked_fill(pack.clean, 0.0)
        found = [
            unpatchify(tokens[: math.prod(grid)], layout.latent_shape, self.config.latent_patch_size)
            for tokens, grid, layout in zip(velocity.split(pack.gen_lengths), pack.grids, pack.layouts, strict=True)
        ]
        if pack.actions is not None:
            rows = pack.actions
            answers = self.llm2action(share.take(gen, rows.tokens), rows.domains, rows.used_domains).float()
            stream = share.place(answers.new_zeros(len(gen), answers.shape[1]), rows.tokens, answers)
            found.append(share.gather(stream).index_select(0, rows.tokens).masked_fill(~rows.predicted, 0.0))
        elif self.trains_actions:
            found[0] = found[0] + self.llm2action.of_no_rows(gen).float().sum()  # zero, with a zero gradient
        return found

    @property
    def trains_actions(self) -> bool:
        """Whether parameters of the action heads need a gradient in every forward pass, also without robot actions.

        FSDP reduces the gradients that a rank has. If only some ranks have robot actions in their packs, the others
        must have a (zero) gradient of the same parameters.
        """
        if not self.config.action_gen or not torch.is_grad_enabled():
            return False
        heads = self.action_modality_embed, *self.action2llm.parameters(), *self.llm2action.parameters()
        return any(parameter.requires_grad for parameter in heads)

    def read_text(self, pack: PackedSequence) -> list[TextMemory]:
        """Runs the understanding tower and returns for each layer the (keys, values) to which latents attend.

        The result depends only on the text, so one call per pack serves all sampling steps. If the network is sharded,
        all ranks must call this method; with context parallelism, each rank gets the keys and values of its heads.
        """
        return self.read_layers(pack)[1]

    def text_states(self, pack: PackedSequence) -> Tensor:
        """Returns the states of the understanding tower after the last norm, [N_und, hidden] (collective call)."""
        states = self.language_model.model.norm(self.read_layers(pack)[0])
        return self.geometry(pack).und_share.gather(states)

    def read_layers(self, pack: PackedSequence) -> tuple[Tensor, list[TextMemory]]:
        """Runs the text half of all layers.

        Returns:
            This rank's shard of the final text stream before the last norm, [text tokens of the rank, hidden], and for
            each layer the (keys, values) of the text to which latents attend.
        """
        model, geometry = self.language_model.model, self.geometry(pack)
        und = self.embed_text(pack, geometry.und_share)
        memories = []
        for layer in model.layers:
            und, memory = layer.read_text(und, geometry)  # type: ignore[operator]  # a ModuleList forgets its type
            memories.append(memory)
        return und, memories


class LanguageModel(nn.Module):
    """Language model of the backbone, with an LM head that checkpoints contain but generation does not use."""

    def __init__(self, config: NetworkConfig, patterns: Sequence[int]) -> None:
        super().__init__()
        self.model = DecoderStack(config, patterns)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class DecoderStack(nn.Module):
    """Embedding, decoder layers (each with its attention pattern) and the two final norms."""

    def __init__(self, config: NetworkConfig, patterns: Sequence[int]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(MoTDecoderLayer(config, pattern) for pattern in patterns)
        self.norm = stream_norm(config)
        self.norm_moe_gen = stream_norm(config)


def check_inputs(pack: PackedSequence, latents: Sequence[Tensor], timesteps: Tensor, channels: int) -> None:
    """Raises ValueError if latents or timesteps do not have the shapes that a pack requires.

    Args:
        pack: Layout of the samples.
        latents: Latents of each sample.
        timesteps: Timesteps of the samples.
        channels: Required number of latent channels.
    """
    count = len(pack.layouts)
    if len(latents) != count or tuple(timesteps.shape) != (count,):
        raise ValueError(
            f"a pack of {count} samples needs {count} latents and timesteps of shape [{count}], "
            f"found {len(latents)} latents and timesteps of shape {list(timesteps.shape)}"
        )
    for index, (latent, layout) in enumerate(zip(latents, pack.layouts, strict=True)):
        if tuple(latent.shape) != (channels, *layout.latent_shape):
            raise ValueError(
                f"sample {index}: its layout requires a latent of shape {[channels, *layout.latent_shape]}, found "
                f"{list(latent.shape)}"
            )


def check_action_values(pack: PackedSequence, actions: Tensor | None, channels: int) -> None:
    """Raises ValueError if `actions` is not [robot actions of the pack, channels], or not None for a pack without."""
    expected = None if pack.actions is None else [len(pack.actions.tokens), channels]
    found = None if actions is None else list(actions.shape)
    if found != expected:
        raise ValueError(f"the pack requires robot actions of shape {expected}, found {found}")


def patchify(latent: Tensor, patch: int) -> Tensor:
    """Splits a latent [C, t, h, w] into tokens [t*ceil(h/p)*ceil(w/p), p*p*C], where p is the patch size.

    The elements of a token are ordered by row, column and channel. Sides that are not a multiple of the patch size are
    zero-padded at the bottom and right.
    """
    channels, _, height, width = latent.shape
    latent = F.pad(latent, (0, -width % patch, 0, -height % patch)) if width % patch or height % patch else latent
    blocks = latent.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    return blocks.permute(1, 2, 4, 3, 5, 0).reshape(-1, patch * patch * channels)


def unpatchify(tokens: Tensor, shape: tuple[int, int, int], patch: int) -> Tensor:
    """Inverts `patchify` for a latent of shape (t, h, w), without the padding."""
    frames, height, width = shape
    rows, columns = -(-height // patch), -(-width // patch)
    blocks = tokens.view(frames, rows, columns, patch, patch, -1).permute(5, 0, 1, 3, 2, 4)
    return blocks.reshape(-1, frames, rows * patch, columns * patch)[:, :, :height, :width]


class TimestepEmbedder(nn.Module):
    """Timestep embedding: sinusoid (256 channels, cosines first) → linear → SiLU → linear.

    It is computed in float32 for any dtype of the weights.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        first, second = nn.Linear(TIMESTEP_CHANNELS, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.ModuleList([first, nn.SiLU(), second])

    def forward(self, t: Tensor) -> Tensor:
        """Embeds timesteps t in 0..1, [n]; returns float32 [n, hidden]."""
        with torch.autocast(t.device.type, enabled=False):
            x = sinusoid(t.float(), TIMESTEP_CHANNELS)
            for module in self.mlp:
                x = linear_fp32(x, module) if isinstance(module, nn.Linear) else module(x)
            return x


def linear_fp32(x: Tensor, linear: nn.Linear) -> Tensor:
    """Computes `linear(x)` in float32 for any dtype of the weights."""
    return F.linear(x, linear.weight.float(), linear.bias.float())


def sinusoid(t: Tensor, channels: int) -> Tensor:
    """Computes the embedding [cos(t f_k), sin(t f_k)] of t [n], with f_k = 10000^(-k / (channels/2)): [n, channels]."""
    half = channels // 2
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    angles = t[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class DomainAwareLinear(nn.Module):
    """Linear layer with separate weights per embodiment domain, stored as two embedding tables.

    A row of `fc` is the flattened [in, out] matrix of a domain (not the usual [out, in]).
    """

    def __init__(self, in_features: int, out_features: int, num_domains: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.fc = nn.Embedding(num_domains, in_features * out_features)
        self.bias = nn.Embedding(num_domains, out_features)

    def forward(self, x: Tensor, domains: Tensor, used_domains: Sequence[int]) -> Tensor:
        """Applies the linear layer of each row's domain.

        A product with all rows for each domain that occurs needs less memory than one weight per row.

        Args:
            x: Input rows [n, in].
            domains: Domain of each row, int64 [n].
            used_domains: The different values in `domains`.

        Returns:
            Output rows [n, out].
        """
        first, *others = used_domains
        result = self.of_domain(x, first)
        for domain in others:
            result = torch.where((domains == domain)[:, None], self.of_domain(x, domain), result)
        return result

    def of_domain(self, x: Tensor, domain: int) -> Tensor:
        """Applies the linear layer of one domain to x [n, in]; returns [n, out]."""
        weight = self.fc.weight[domain].view(self.in_features, self.out_features)
        return torch.addmm(self.bias.weight[domain], x, weight)

    def of_no_rows(self, like: Tensor) -> Tensor:
        """Returns an output of 0 rows, with dtype and device of `like`; it gives the weights a zero gradient."""
        return self.of_domain(like.new_zeros(0, self.in_features), 0)


@torch.no_grad()
def init_weights(network: Cosmos3Network, seed: int, names: Collection[str] | None = None) -> None:
    """Initializes parameters in place, sharded or not; one complete tensor exists at a time, in host RAM.

    Understanding tower: normal(0, initializer_range), norms one. Generation tower: a copy of the understanding tower,
    but 1 for norms that exist only here. Heads and the time embedder: normal with standard deviation
    1/sqrt(fan_in), truncated at three standard deviations, biases zero. Adapters of either tower: A uniform within
    ±1/sqrt(fan_in), B zero.

    A value depends only on the seed and the parameter's name, bit for bit, not on other parameters or sharding.

    Args:
        network: The network.
        seed: Seed of all values.
        names: Internal parameter names; None: all parameters.

    Raises:
        ValueError: If a name is unknown.
    """
    parameters = native_parameters(network)
    base = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
    for name, parameter in chosen(parameters, names).items():
        source = name.replace(TOWER, "")
        origin = source if source in parameters and not is_adapter(name) else name
        fill(parameter, initial_value(network, origin, parameter.shape, base))


def initial_value(network: Cosmos3Network, name: str, shape: torch.Size, base: int) -> Tensor:
    """Returns the initial float32 value of a parameter that is not a copy of another one.

    Args:
        network: The network.
        name: Internal parameter name.
        shape: Shape of the parameter.
        base: Seed of all parameters; the value depends only on `base`, `name` and `shape`.
    """
    owner, _, leaf = name.rpartition(".")
    value = torch.empty(shape, dtype=torch.float32)
    stream = torch.Generator().manual_seed(seed_of(base, name))
    head = name.split(".")[0]
    if is_adapter(name):
        return init_adapter(value, name, stream)
    if leaf.endswith("_modality_embed"):
        return truncated_normal(value, fan_in=value.numel(), generator=stream)
    if head in HEADS:
        if leaf == "bias" or owner.endswith(".bias"):
            return value.zero_()
        # A domain-aware table has one flattened [in, out] matrix per row.
        fan_in = getattr(network, head).in_features if owner.endswith(".fc") else value.shape[1]
        return truncated_normal(value, fan_in=fan_in, generator=stream)
    if value.ndim == 1:  # every vector outside the heads is a norm's weight
        return value.fill_(1.0)
    return value.normal_(0.0, network.config.initializer_range, generator=stream)


def truncated_normal(value: Tensor, *, fan_in: int, generator: torch.Generator) -> Tensor:
    if in_simulation():  # trunc_normal_ resamples until all values are in range; simulated tensors have no values
        return value
    std = fan_in**-0.5
    return nn.init.trunc_normal_(value, std=std, a=-3 * std, b=3 * std, generator=generator)
