"""Packs samples into two token streams, text (understanding) and latents (generation), without padding.

The tokens of a sample are consecutive in each stream; its robot actions follow its latents in the second one.
Everything that does not change between two forward passes (indices, positions, attention plans) is computed here once,
on the CPU; a sampler reuses one pack for all its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from worldsmith.families.cosmos3.attention.modes import AttentionModes, AttentionPattern, attention_modes
from worldsmith.families.cosmos3.attention.packed import LatentPlan, SegmentPlan, plan_segments
from worldsmith.families.cosmos3.attention.plans import plan_latents
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.network.rope import (
    Rotary,
    action_positions,
    count_within,
    text_positions,
    video_positions,
)
from worldsmith.models.real_values import real_values
from worldsmith.models.video_model import ActionLayout, SampleLayout

ADDED_TOKENS = 2
"""Tokens that follow each caption in a pack: end of sequence and vision start."""


class TokenSharding(Protocol):
    """Protocol of the distribution of a sequence of N tokens over the ranks of a group (context parallelism).

    Attention works on all N tokens and some heads per rank, everything else on n tokens per rank. `to_heads`,
    `to_tokens` and `gather` are collective calls.
    """

    def shard(self, tokens: Tensor, fill: float = 0) -> Tensor:
        """Returns this rank's rows [n, …] of the tensor `tokens` [N, …], which must be equal on all ranks.

        If N is not a multiple of the ranks, the last shard is padded with rows of the value `fill`.
        """

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Redistributes tensors over ranks: from some tokens with all heads to all tokens with some heads.

        Args:
            tensors: Queries, keys or values of this rank's tokens, each [n, heads, d].

        Returns:
            One tensor [N, heads per rank, d] for each argument, in the same order.
        """

    def to_tokens(self, attended: Tensor) -> Tensor:
        """Reverts `to_heads`: [N, heads per rank, d] of all tokens → [n, heads, d] of this rank's tokens."""

    def gather(self, tokens: Tensor) -> Tensor:
        """Gathers all ranks' tokens [n, …] into one stream [N, …] on every rank."""

    def take(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Returns the tokens with these indices in the stream, [k, …]; tokens of other ranks have arbitrary values.

        Args:
            tokens: This rank's tokens [n, …].
            index: Indices in the stream of N tokens, int64 [k].
        """

    def place(self, tokens: Tensor, index: Tensor, values: Tensor) -> Tensor:
        """Returns a copy of this rank's tokens [n, …] in which `values` [k, …] replace those that `take` returns."""


class AllTokens:
    """Token distribution of a single rank: it has all tokens and exchanges none."""

    def shard(self, tokens: Tensor, fill: float = 0) -> Tensor:
        return tokens

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    def to_tokens(self, attended: Tensor) -> Tensor:
        return attended

    def gather(self, tokens: Tensor) -> Tensor:
        return tokens

    def take(self, tokens: Tensor, index: Tensor) -> Tensor:
        return tokens.index_select(0, index)

    def place(self, tokens: Tensor, index: Tensor, values: Tensor) -> Tensor:
        return tokens.index_copy(0, index, values)


def unsharded(length: int) -> TokenSharding:
    """Returns the distribution without context parallelism: this rank has all `length` tokens."""
    return AllTokens()


@dataclass(frozen=True, slots=True)
class Geometry:
    """Positions and attention plans of a pack: the inputs of a decoder layer in addition to the two token streams."""

    und_rotary: Rotary
    gen_rotary: Rotary
    und_segments: SegmentPlan
    gen_plans: tuple[LatentPlan, ...]
    """Attention plans of the latents, one per pattern of the network's layers."""
    und_share: TokenSharding = field(default_factory=AllTokens)
    gen_share: TokenSharding = field(default_factory=AllTokens)

    def to(self, dtype: torch.dtype) -> Geometry:
        """Returns a copy whose rotary tables and attention masks have the given dtype."""
        return replace(
            self,
            und_rotary=self.und_rotary.to(dtype),
            gen_rotary=self.gen_rotary.to(dtype),
            gen_plans=tuple(plan.to(dtype) for plan in self.gen_plans),
        )

    def shared(self, und_share: TokenSharding, gen_share: TokenSharding) -> Geometry:
        """Returns a copy for one context-parallel rank: rotary tables of its tokens, attention plans of all.

        Args:
            und_share: Distribution of the text tokens over ranks.
            gen_share: Distribution of the latent tokens over ranks.
        """
        return replace(
            self,
            und_rotary=Rotary(*map(und_share.shard, self.und_rotary)),
            gen_rotary=Rotary(*map(gen_share.shard, self.gen_rotary)),
            und_share=und_share,
            gen_share=gen_share,
        )


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """Robot actions of a pack: each row of numbers is one token of the latent stream."""

    tokens: Tensor
    """Index of the token of each row in the latent stream, int64 [rows of all samples]."""
    domains: Tensor
    """Embodiment domain of each row, int64 [rows]."""
    used_domains: tuple[int, ...]
    """The different values in `domains`."""
    predicted: Tensor
    """Mask that is True at used channels of noised rows, which are predicted; bool [rows, max_action_dim]."""


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """Layout of n packed samples: a sequence of text tokens, and a sequence of latent tokens without their values.

    The tokens of a sample are contiguous in both sequences. Its robot actions follow its latents in the latent stream.
    """

    layouts: tuple[SampleLayout, ...]
    text_ids: Tensor
    """Caption ids + EOS + vision-start of all samples, int64 [N_und]."""
    text_lengths: tuple[int, ...]
    """Number of text tokens of each sample, including EOS and vision-start."""
    grids: tuple[tuple[int, int, int], ...]
    """Grid (t, rows, columns) of each sample's latent tokens, which are in raster order in the latent stream."""
    und_positions: Tensor
    """Positions (time, height, width) of the text tokens, float32 [3, N_und]."""
    gen_positions: Tensor
    """Positions (time, height, width) of the tokens of the latent stream, float32 [3, N_gen]."""
    timestep_rows: Tensor
    """Index of the sample of each token of the latent stream, or n for clean frames and action rows, int64 [N_gen]."""
    clean: Tensor
    """Mask that is True at tokens of clean conditioning frames and of clean action rows, bool [N_gen, 1]."""
    patterns: tuple[AttentionPattern, ...]
    """Attention patterns for which `gen_plans` were built."""
    und_segments: SegmentPlan
    """Plan of the causal attention of the text."""
    gen_plans: tuple[LatentPlan, ...]
    """Attention plans of the latents, one per pattern of the network's layers."""
    actions: ActionTokens | None = None
    """Robot actions of all samples; None: no sample has any."""

    @property
    def num_tokens(self) -> int:
        """Number of text tokens, latent tokens and robot actions together."""
        return len(self.text_ids) + len(self.timestep_rows)

    @property
    def action_rows(self) -> list[int]:
        """Number of robot actions of each sample."""
        return count_rows(self.layouts)

    @property
    def gen_lengths(self) -> list[int]:
        """Number of tokens of each sample in the latent stream."""
        return [math.prod(grid) + rows for grid, rows in zip(self.grids, self.action_rows)]


@real_values()
def pack_samples(
    layouts: Sequence[SampleLayout],
    config: NetworkConfig,
    *,
    eos_id: int,
    vision_start_id: int,
    attention: AttentionModes | None = None,
    device: torch.device | str = "cpu",
) -> PackedSequence:
    """Packs samples into two sequences, text and latents with robot actions; positions restart with every sample.

    The tensors of the pack are on the CPU; `move_tensors` moves them to the device of the network.

    Args:
        layouts: Layouts of the samples.
        config: Config of the network.
        eos_id: End-of-sequence token, appended to each caption.
        vision_start_id: Vision-start token, appended after `eos_id`.
        attention: Attention patterns of the network; None: two_way (dense attention).
        device: Device of the network, which decides between attention kernels.

    Raises:
        ValueError: If the pack is empty, or a layout does not fit the network.
        UserError: If a neighborhood does not fit a sample, or a sample has robot actions and attention is not dense.
    """
    if not layouts:
        raise ValueError("the list of samples to pack is empty")
    for index, layout in enumerate(layouts):
        check_layout(index, layout)
        check_actions(index, layout.actions, config)
    grids = tuple(token_grid(layout.latent_shape, config) for layout in layouts)
    ids = [[*layout.text_ids, eos_id, vision_start_id] for layout in layouts]
    check_ids(ids, config.vocab_size)

    text_lengths = tuple(len(sample) for sample in ids)
    num_latents, action_rows = [math.prod(grid) for grid in grids], count_rows(layouts)
    gen_lengths = [latents + rows for latents, rows in zip(num_latents, action_rows)]
    und_positions = text_positions(text_lengths)
    gen_positions = video_positions(grids, text_lengths, [layout.fps for layout in layouts], config)

    gen_samples = torch.arange(len(layouts)).repeat_interleave(torch.tensor(gen_lengths))
    clean_lengths = [layout.condition_frames * math.prod(grid[1:]) for layout, grid in zip(layouts, grids, strict=True)]
    index_in_sample = count_within(gen_lengths)
    clean = index_in_sample < torch.tensor(clean_lengths)[gen_samples]
    actions = None
    if any(action_rows):
        action_row = index_in_sample - torch.tensor(num_latents)[gen_samples]  # below 0: a latent
        clean_rows = torch.tensor([layout.actions.clean_rows if layout.actions else 0 for layout in layouts])
        clean |= (action_row >= 0) & (action_row < clean_rows[gen_samples])
        tokens = (action_row >= 0).nonzero()[:, 0]
        actions = action_tokens(layouts, tokens, ~clean[tokens], config)
        parts = zip(gen_positions.split(num_latents, dim=1), layouts, text_lengths)
        gen_positions = torch.cat([with_actions(*part, config) for part in parts], dim=1)
    attention = attention or attention_modes("two_way", config.num_hidden_layers)
    return PackedSequence(
        layouts=tuple(layouts),
        text_ids=torch.tensor([token for sample in ids for token in sample]),
        text_lengths=text_lengths,
        grids=grids,
        und_positions=und_positions,
        gen_positions=gen_positions,
        timestep_rows=gen_samples.masked_fill(clean, len(layouts)),
        clean=clean[:, None],
        patterns=attention.patterns,
        und_segments=plan_segments(text_lengths, text_lengths, causal=True),
        gen_plans=plan_latents(attention, grids, text_lengths, device, action_rows),
        actions=actions,
    )


def count_rows(layouts: Sequence[SampleLayout]) -> list[int]:
    """Returns the number of robot actions of each sample."""
    return [0 if layout.actions is None else layout.actions.rows for layout in layouts]


def action_tokens(
    layouts: Sequence[SampleLayout], tokens: Tensor, noised: Tensor, config: NetworkConfig
) -> ActionTokens:
    """Returns the `ActionTokens` of a pack.

    Args:
        layouts: Layouts of the samples.
        tokens: Index of each robot action in the latent stream, int64 [rows].
        noised: Mask that is True at rows that are predicted, bool [rows].
        config: Config of the network.
    """
    actions = [layout.actions for layout in layouts if layout.actions is not None]
    counts = torch.tensor([own.rows for own in actions])
    domains, channels = (
        torch.tensor(values).repeat_interleave(counts)
        for values in ([own.domain for own in actions], [own.channels for own in actions])
    )
    used = torch.arange(config.max_action_dim) < channels[:, None]
    return ActionTokens(tokens, domains, tuple(sorted({own.domain for own in actions})), used & noised[:, None])


def with_actions(positions: Tensor, layout: SampleLayout, text_length: int, config: NetworkConfig) -> Tensor:
    """Appends the positions of a sample's robot actions, if it has any, to those of its latents, float32 [3, n]."""
    if layout.actions is None:
        return positions
    return torch.cat((positions, action_positions(layout.actions, text_length, config)), dim=1)


def token_grid(latent_shape: tuple[int, int, int], config: NetworkConfig) -> tuple[int, int, int]:
    """Returns the grid (t, rows, columns) of a sample's latent tokens; sides are padded to a multiple of the patch."""
    frames, height, width = latent_shape
    return frames, -(-height // config.latent_patch_size), -(-width // config.latent_patch_size)


def check_layout(index: int, layout: SampleLayout) -> None:
    """Raises ValueError if a layout has an invalid latent shape, frame rate or number of conditioning frames.

    Args:
        index: Index of the sample in the pack, for the error message.
        layout: Layout of the sample.
    """
    if len(layout.latent_shape) != 3 or min(layout.latent_shape) < 1:
        raise ValueError(
            f"sample {index}: latent_shape must be (t, h, w) of at least 1 each, found {layout.latent_shape}"
        )
    if layout.fps is not None and not layout.fps > 0:
        raise ValueError(f"sample {index}: fps must be above 0 or None, found {layout.fps}")
    if not 0 <= layout.condition_frames <= layout.latent_shape[0]:
        raise ValueError(
            f"sample {index}: condition_frames must be between 0 and its {layout.latent_shape[0]} latent frames, "
            f"found {layout.condition_frames}"
        )


def check_actions(index: int, actions: ActionLayout | None, config: NetworkConfig) -> None:
    """Raises ValueError if robot actions are not consistent, or the network cannot represent them.

    Args:
        index: Index of the sample in the pack, for the error message.
        actions: Robot actions of the sample; None: it has none.
        config: Config of the network.
    """
    if actions is None:
        return
    if not config.action_gen:
        raise ValueError(f"sample {index} has robot actions, but the network has no action heads (action_gen is false)")
    limits = {
        "rows": (actions.rows, 1, None),
        "channels": (actions.channels, 1, config.max_action_dim),
        "clean_rows": (actions.clean_rows, 0, actions.rows),
        "domain": (actions.domain, 0, config.num_embodiment_domains - 1),
    }
    for name, (value, low, high) in limits.items():
        if value < low or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ValueError(f"sample {index}: actions.{name} must be {allowed}, found {value}")
    if not actions.fps > 0:
        raise ValueError(f"sample {index}: actions.fps must be above 0, found {actions.fps}")


def check_ids(ids: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raises ValueError if a token id of a sample is outside an embedding table with `vocab_size` rows."""
    for index, sample in enumerate(ids):
        if min(sample) < 0 or max(sample) >= vocab_size:
            raise ValueError(
                f"sample {index}: token ids range from {min(sample)} to {max(sample)}, but the network's vocab_size "
                f"is {vocab_size}. Use the text tokenizer that belongs to the network"
            )
