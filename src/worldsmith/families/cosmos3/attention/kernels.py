"""Fused attention kernels for a pack of samples on CUDA: FlexAttention and NATTEN.

FlexAttention computes block-diagonal attention in one kernel for all samples, without padding. NATTEN
(https://natten.org, `pip install natten`) computes neighborhood attention sample by sample: it attends to the
neighborhood and to the text (its `additional_keys`) in two calls and merges them by their log-sum-exps, gradients
included.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from worldsmith.families.cosmos3.attention.modes import AxisWindow

BLOCK = 128
VERSIONS = 32
"""Recompile limit of the FlexAttention kernel: each gradient requirement and autograd mode has its own version."""
OPERATIONS = {1: "na1d", 2: "na2d", 3: "na3d"}
"""Names of the NATTEN functions by number of token grid axes."""

SampleLengths = tuple[tuple[int, ...], tuple[int, ...]]
"""Number of text tokens of each packed sample, and number of latent tokens of each."""


@dataclass(frozen=True, slots=True)
class FlexPlan:
    """FlexAttention inputs for packed samples: their lengths, and a mask that limits queries to their sample."""

    joined: SampleLengths
    block_mask: BlockMask

    def to(self, dtype: torch.dtype) -> FlexPlan:
        """Returns this plan unchanged: it has no floating-point tensors to convert to `dtype`."""
        return self


def run_flex(q: Tensor, k: Tensor, v: Tensor, plan: FlexPlan) -> Tensor:
    """Computes attention with FlexAttention; on a CPU only the forward pass is supported.

    Args:
        q: Queries [N_q, heads, d].
        k: Keys [N_kv, kv_heads, d], sample after sample.
        v: Values [N_kv, kv_heads, d], sample after sample.
        plan: Block mask, from `plan_flex`.

    Returns:
        Attention output [N_q, heads, d].
    """
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out: Tensor = kernel(q.is_cuda)(q, k, v, block_mask=plan.block_mask, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


@functools.cache
def kernel(fused: bool) -> Callable[..., Any]:
    """Returns the function `flex_attention` of torch: compiled if `fused`, otherwise eager.

    The eager function stores the full score matrix. It is used on a CPU, where it has no backward pass.
    """
    if fused:
        # One graph with a high limit: beyond it, torch would use the full score matrix without a warning.
        options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "recompile_limit": VERSIONS}
        return torch.compile(flex_attention, **options)
    return flex_attention


def plan_flex(joined: SampleLengths, *, device: torch.device | str | None = None) -> FlexPlan:
    """Plans FlexAttention over packed samples: all latents of a sample attend to all text and latents of that sample.

    Args:
        joined: Lengths of the samples.
        device: Device of the plan; None: the default device.
    """
    text, latents = map(torch.tensor, joined)
    q_samples, kv_samples = (
        torch.arange(len(lengths)).repeat_interleave(lengths) for lengths in (latents, text + latents)
    )
    return FlexPlan(joined, block_diagonal_mask(q_samples, kv_samples, device))


def block_diagonal_mask(q_samples: Tensor, kv_samples: Tensor, device: torch.device | str | None) -> BlockMask:
    """Builds the mask with which queries attend to the keys of the same sample.

    The result equals that of torch's `create_block_mask`, which evaluates all N_q x N_kv entries. This function only
    compares the first and last sample of each block.

    Args:
        q_samples: Sample index of each query, sorted, [N_q].
        kv_samples: Sample index of each key, sorted, [N_kv].
        device: Device of the mask; None: the default device.
    """
    q_low, q_high = block_bounds(q_samples)
    kv_low, kv_high = block_bounds(kv_samples)
    seen = (q_low[:, None] <= kv_high) & (kv_low <= q_high[:, None])
    # No mask is needed if all queries of a block and all keys of a block are in one sample.
    whole_q = torch.arange(len(q_low)) < len(q_samples) // BLOCK
    whole_kv = torch.arange(len(kv_low)) < len(kv_samples) // BLOCK
    full = seen & (q_low == q_high)[:, None] & (kv_low == kv_high) & whole_q[:, None] & whole_kv
    q_samples, kv_samples = q_samples.to(device), kv_samples.to(device)

    def same_sample(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return q_samples[query] == kv_samples[key]

    return BlockMask.from_kv_blocks(
        *block_lists(seen & ~full, device),
        *block_lists(full, device),
        BLOCK,
        same_sample,
        (len(q_samples), len(kv_samples)),
    )


def block_bounds(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sample indices of the first and of the last token in each block of `BLOCK` tokens.

    Args:
        samples: Sample index of each token, sorted, [N].

    Returns:
        Two tensors [blocks].
    """
    starts = torch.arange(0, len(samples), BLOCK)
    return samples[starts], samples[(starts + BLOCK - 1).clamp(max=len(samples) - 1)]


def block_lists(blocks: Tensor, device: torch.device | str | None) -> tuple[Tensor, Tensor]:
    """Converts a dense matrix of block pairs to the sparse arguments of `BlockMask.from_kv_blocks`.

    Args:
        blocks: Whether a block of queries attends to a block of keys, bool [query blocks, key blocks].
        device: Device of the results.

    Returns:
        For each query block the number of its key blocks, int32 [1, 1, query blocks], and the indices of all key
        blocks, those that it attends to first, int32 [1, 1, query blocks, key blocks].
    """
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None].to(device), order.int()[None, None].to(device)


@dataclass(frozen=True, slots=True)
class NattenSegment:
    """NATTEN inputs of one packed sample: its rows in the concatenated tokens, token grid and attention windows."""

    latents: slice
    """Rows of the sample in the concatenated latent tokens of all samples."""
    text: slice
    """Rows of the sample in the concatenated text tokens of all samples."""
    grid: tuple[int, ...]
    """Number of latent tokens along each axis longer than 1."""
    windows: tuple[AxisWindow, ...]
    """Attention window along each axis longer than 1; empty: each latent attends to all latents of the sample."""


@dataclass(frozen=True, slots=True)
class NattenPlan:
    """Plan for neighborhood attention of latents with NATTEN: one segment per sample, in the order of the pack."""

    segments: tuple[NattenSegment, ...]

    def to(self, dtype: torch.dtype) -> NattenPlan:
        """Returns this plan unchanged: it has no floating-point tensors to convert to `dtype`."""
        return self


def natten_available(device: torch.device) -> bool:
    """Returns whether NATTEN and its compiled kernels can be used on `device`."""
    if device.type != "cuda" or importlib.util.find_spec("natten") is None:
        return False
    return bool(getattr(importlib.import_module("natten"), "HAS_LIBNATTEN", False))


def run_natten(q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor, plan: NattenPlan) -> Tensor:
    """Computes attention of latents to the text of their sample and to neighboring latents, sample by sample.

    It is computed with NATTEN.

    Args:
        q: Queries of the latents [N_gen, heads, d].
        k: Keys of the latents [N_gen, kv_heads, d].
        v: Values of the latents [N_gen, kv_heads, d].
        text_k: Keys of the text [N_und, kv_heads, d].
        text_v: Values of the text [N_und, kv_heads, d].
        plan: Rows, token grid and attention windows of each sample.

    Returns:
        Attention output [N_gen, heads, d].
    """
    repeat = q.shape[1] // k.shape[1]  # not every NATTEN kernel supports grouped-query attention
    k, v, text_k, text_v = (x.repeat_interleave(repeat, dim=1) for x in (k, v, text_k, text_v))
    return torch.cat(
        [
            sample_attention(q[s.latents], k[s.latents], v[s.latents], text_k[s.text], text_v[s.text], s)
            for s in plan.segments
        ]
    )


def sample_attention(q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor, segment: NattenSegment) -> Tensor:
    """Computes attention of the latents of one sample to its text and to neighboring latents, with NATTEN.

    If the segment has no attention windows, the latents attend to all latents of the sample.

    Args:
        q: Queries of the latents [latent tokens, heads, d].
        k: Keys of the latents, with as many heads as `q` [latent tokens, heads, d].
        v: Values of the latents [latent tokens, heads, d].
        text_k: Keys of the text [text tokens, heads, d].
        text_v: Values of the text [text tokens, heads, d].
        segment: Token grid and attention windows of the sample.

    Returns:
        Attention output [latent tokens, heads, d].
    """
    if not segment.windows:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, torch.cat((text_k, k)), torch.cat((text_v, v))))
        return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
    operation = getattr(importlib.import_module("natten"), OPERATIONS[len(segment.grid)])
    out: Tensor = operation(
        *(x.unflatten(0, segment.grid)[None] for x in (q, k, v)),
        kernel_size=tuple(own.window for own in segment.windows),
        stride=tuple(own.stride for own in segment.windows),
        dilation=tuple(own.dilation for own in segment.windows),
        is_causal=tuple(own.causal for own in segment.windows),
        additional_keys=text_k[None],
        additional_values=text_v[None],
    )
    return out[0].flatten(0, len(segment.grid) - 1)
