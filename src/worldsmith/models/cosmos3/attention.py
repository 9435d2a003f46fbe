"""Attention over many samples in one sequence: each sample sees only itself, no token is padded for long.

`plan_segments` turns segment lengths into index tensors once; `packed_attention` runs them with one of two backends:

- grouped: segments of similar length become one batched `scaled_dot_product_attention` call (CPU, and float32 on CUDA);
- varlen: `torch.nn.attention.varlen` on CUDA in bfloat16 or float16, without any padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# A group may hold up to this share of padded score entries, plus a fixed number whose cost is below one more call.
PADDING_SHARE = 0.25
PADDING_ENTRIES = 16384


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments that run as one batch. Rows past a segment's end repeat a row of the same segment."""

    queries: Tensor
    """Rows of q, [batch * q_length]."""
    keys: Tensor
    """Rows of k and v, [batch * kv_length]."""
    batch: int
    mask: Tensor | None
    """[batch, 1, 1, kv_length], true where a key exists; None when nothing is padded or the causal mask hides it."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Block-diagonal attention of one pack, ready for every backend."""

    causal: bool
    groups: tuple[SegmentGroup, ...]
    restore: Tensor | None
    """Rows of the concatenated group outputs in the order of q, [N_q]; None when they already are in order."""
    key_rows: Tensor | None
    """Rows of k and v, sample after sample, [N_kv]; None when they already are in order."""
    cu_q: Tensor
    """Cumulative query lengths, int32 [segments + 1]."""
    cu_kv: Tensor
    """Cumulative key lengths, int32 [segments + 1]."""
    max_q: int
    max_kv: int


def check_attention_mode(mode: str) -> None:
    """Raises ValueError for a `joint_attn_implementation` that this network does not run."""
    if mode != "two_way":
        raise ValueError(
            f"joint_attn_implementation='{mode}' is not available; use 'two_way', the dense attention of all "
            "released checkpoints ('three_way' without sparsity gives the same numbers; 'flex' is for several cameras)"
        )


def text_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """Text over the text of its own sample, causal. q [N_und, heads, d], k and v [N_und, kv_heads, d]; like q."""
    return packed_attention(q, k, v, plan)


def latent_attention(q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor, plan: SegmentPlan) -> Tensor:
    """Latents over the text and the latents of their own sample. q [N_gen, heads, d]; the result is like q.

    k and v are the latents' own, [N_gen, kv_heads, d]; text_k and text_v the text's, [N_und, kv_heads, d].
    """
    return packed_attention(q, torch.cat((text_k, k)), torch.cat((text_v, v)), plan)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """Attention of q [N_q, heads, d] over k, v [N_kv, kv_heads, d] inside the plan's segments; [N_q, heads, d].

    Scale 1/sqrt(d). Query heads share key heads in order when there are fewer of those.
    """
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return varlen_attention(q, k, v, plan)
    return grouped_attention(q, k, v, plan)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """`packed_attention` by one `scaled_dot_product_attention` per group of similar segments."""
    outputs = []
    for group in plan.groups:
        q_batch, k_batch, v_batch = (
            x.index_select(0, rows).unflatten(0, (group.batch, -1)).transpose(1, 2)
            for x, rows in ((q, group.queries), (k, group.keys), (v, group.keys))
        )
        out = F.scaled_dot_product_attention(
            q_batch, k_batch, v_batch, attn_mask=group.mask, is_causal=plan.causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if plan.restore is None else joined.index_select(0, plan.restore)


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """`packed_attention` by the variable-length flash kernels (CUDA, half precision)."""
    from torch.nn.attention.varlen import varlen_attn

    if plan.key_rows is not None:
        k, v = k.index_select(0, plan.key_rows), v.index_select(0, plan.key_rows)
    window = (-1, 0) if plan.causal else (-1, -1)
    return varlen_attn(
        q, k, v, plan.cu_q, plan.cu_kv, plan.max_q, plan.max_kv,
        window_size=window, enable_gqa=q.shape[1] != k.shape[1],
    )  # type: ignore[return-value]  # fmt: skip


def plan_segments(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    key_rows: Tensor | None = None,
    *,
    causal: bool,
    device: torch.device | str | None = None,
) -> SegmentPlan:
    """Plans the attention of consecutive query segments, each over its own rows of the key stream.

    Args:
        query_lengths: tokens of each segment; the segments fill the query stream in order.
        key_lengths: keys that each segment sees.
        key_rows: their rows in the key stream, segment after segment, int64 [sum(key_lengths)]; None when the
            segments fill the key stream in order too.
        causal: query i sees keys 0..i; then every segment has as many keys as queries.
    """
    q_lengths, kv_lengths = torch.tensor(query_lengths), torch.tensor(key_lengths)
    cu_q, cu_kv = (F.pad(lengths.cumsum(0), (1, 0)) for lengths in (q_lengths, kv_lengths))
    first_rows = torch.empty_like(q_lengths)  # where a segment's output starts in the joined group outputs
    groups, joined = [], 0
    for members in (torch.tensor(group) for group in group_segments(query_lengths, key_lengths)):
        queries = padded_rows(cu_q[members], q_lengths[members])
        keys = padded_rows(cu_kv[members], kv_lengths[members])
        existing = torch.arange(keys.shape[1]) < kv_lengths[members, None]
        # Padded keys stand after all real ones, where the causal mask already hides them from every real query.
        mask = None if causal or bool(existing.all()) else existing[:, None, None].to(device)
        keys = keys.flatten() if key_rows is None else key_rows[keys.flatten()]
        groups.append(SegmentGroup(queries.flatten().to(device), keys.to(device), len(members), mask))
        first_rows[members] = joined + torch.arange(len(members)) * queries.shape[1]
        joined += queries.numel()
    restore = torch.arange(int(cu_q[-1])) + (first_rows - cu_q[:-1]).repeat_interleave(q_lengths)
    in_order = joined == len(restore) and torch.equal(restore, torch.arange(joined))
    return SegmentPlan(
        causal=causal,
        groups=tuple(groups),
        restore=None if in_order else restore.to(device),
        key_rows=None if key_rows is None else key_rows.to(device),
        cu_q=cu_q.to(device, torch.int32),
        cu_kv=cu_kv.to(device, torch.int32),
        max_q=max(query_lengths),
        max_kv=max(key_lengths),
    )


def group_segments(query_lengths: Sequence[int], key_lengths: Sequence[int]) -> list[list[int]]:
    """Splits segments, ordered by size, into groups whose padding stays below the module's limits."""
    by_size = sorted(range(len(query_lengths)), key=lambda i: (key_lengths[i], query_lengths[i]))
    groups: list[list[int]] = []
    used = 0
    for i in by_size:
        area = query_lengths[i] * key_lengths[i]
        if groups:
            members = [*groups[-1], i]
            padded_area = len(members) * max(query_lengths[j] for j in members) * max(key_lengths[j] for j in members)
            if padded_area - (used + area) <= PADDING_SHARE * (used + area) + PADDING_ENTRIES:
                groups[-1], used = members, used + area
                continue
        groups.append([i])
        used = area
    return [sorted(members) for members in groups]


def padded_rows(starts: Tensor, lengths: Tensor) -> Tensor:
    """Rows start, start + 1, … of each segment, its last row repeated up to the longest; [segments, longest]."""
    offsets = torch.arange(int(lengths.max()))
    return starts[:, None] + torch.minimum(offsets, lengths[:, None] - 1)
