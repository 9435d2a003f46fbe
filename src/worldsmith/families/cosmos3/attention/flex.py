"""Block-diagonal attention of a pack by FlexAttention: one kernel for all samples, without padding (CUDA)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
VERSIONS = 32
"""Compilations of the kernel: by what needs a gradient, with and without autograd."""


@dataclass(frozen=True, slots=True)
class FlexPlan:
    """Each sample's queries over its own keys."""

    key_rows: Tensor
    """Rows of k and v, sample after sample, [N_kv]."""
    block_mask: BlockMask

    def to(self, dtype: torch.dtype) -> FlexPlan:
        """The plan holds no numbers that would change."""
        return self


def run_flex(q: Tensor, k: Tensor, v: Tensor, plan: FlexPlan) -> Tensor:
    """Attention of q [N_q, heads, d] over the own sample's k, v [N_kv, kv_heads, d]; [N_q, heads, d].

    On a CPU it runs forward only.
    """
    k, v = k.index_select(0, plan.key_rows), v.index_select(0, plan.key_rows)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out: Tensor = kernel(q.is_cuda)(q, k, v, block_mask=plan.block_mask, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


@functools.cache
def kernel(fused: bool) -> Callable[..., Any]:
    """FlexAttention: compiled, or (the only form that a CPU has, forward only) with the whole score matrix."""
    if fused:
        # One graph and room for many sizes: past its limit, torch would quietly make the whole score matrix instead.
        options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "recompile_limit": VERSIONS}
        return torch.compile(flex_attention, **options)
    return flex_attention


def plan_flex(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    key_rows: Tensor,
    *,
    device: torch.device | str | None = None,
) -> FlexPlan:
    """Plans consecutive query segments, each over its own rows of the key stream; as `plan_segments`."""
    q_samples, kv_samples = (
        torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) for lengths in (query_lengths, key_lengths)
    )
    return FlexPlan(key_rows.to(device), block_diagonal_mask(q_samples, kv_samples, device))


def block_diagonal_mask(q_samples: Tensor, kv_samples: Tensor, device: torch.device | str | None) -> BlockMask:
    """Queries see the keys of the same sample. The samples of queries and of keys are sorted numbers, [N_q], [N_kv].

    `create_block_mask` gives the same, but fills in all N_q x N_kv entries on the way.
    """
    q_low, q_high = block_bounds(q_samples)
    kv_low, kv_high = block_bounds(kv_samples)
    seen = (q_low[:, None] <= kv_high) & (kv_low <= q_high[:, None])
    # No mask is needed where a whole block of queries and a whole block of keys lie in one sample.
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
    """First and last sample in each block of tokens."""
    starts = torch.arange(0, len(samples), BLOCK)
    return samples[starts], samples[(starts + BLOCK - 1).clamp(max=len(samples) - 1)]


def block_lists(blocks: Tensor, device: torch.device | str | None) -> tuple[Tensor, Tensor]:
    """Per query block the number of its key blocks, and their indices first; int32 [1, 1, q] and [1, 1, q, kv]."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None].to(device), order.int()[None, None].to(device)
