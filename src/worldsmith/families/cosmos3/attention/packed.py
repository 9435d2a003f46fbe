"""Attention over many samples in one sequence: each sample attends only to itself, with little or no padding.

`packed_attention`, for the text, and `latent_attention` are the entry points. Their work is planned once per pack: by
`plan_segments` here, by `plans.py` for neighborhoods and FlexAttention. A `SegmentPlan` has two backends:

- grouped: segments of similar length become one batched `scaled_dot_product_attention` call (CPU, float32 on CUDA, and
  wherever tokens are masked inside a segment);
- varlen: `torch.nn.attention.varlen` on CUDA in bfloat16 or float16, without any padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from worldsmith.families.cosmos3.attention.kernels import FlexPlan, NattenPlan, SampleLengths, run_flex, run_natten

# Max fraction of padded score entries in a group, plus a fixed number that costs less than another call.
PADDING_SHARE = 0.25
PADDING_ENTRIES = 16384
# Segments with the same mask are computed together while their gathered keys stay below this number of rows.
GATHERED_KEYS = 2**17


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments of similar size that one batched call computes, padded to one length by repeating their last row."""

    queries: Tensor
    """Row indices of the queries in q, [batch * q_length]."""
    keys: Tensor
    """Row indices of the keys in k and v, [batch * kv_length]."""
    batch: int
    mask: Tensor | None
    """Attention mask, broadcastable to [batch, heads, q_length, kv_length]: True or 0 keeps a key, False or -inf masks
    it. None if all keys are kept or the causal mask hides the padding."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Attention plan of packed samples: for each segment of queries, the keys that these queries attend to.

    A segment is a text, the latents of a sample, or a group of frames of a sample.
    """

    causal: bool
    groups: tuple[SegmentGroup, ...]
    restore: Tensor | None
    """For each row of q its row in the concatenated outputs of all groups, [N_q]; None if the order is the same."""
    query_rows: Tensor | None
    """Row indices of the queries in q, segment after segment, [N_q]; None if the segments are consecutive in q."""
    key_rows: Tensor | None
    """Row indices of the keys in k and v, segment after segment; None if the segments are consecutive in k and v."""
    cu_q: Tensor
    """Cumulative query lengths, int32 [segments + 1]."""
    cu_kv: Tensor
    """Cumulative key lengths, int32 [segments + 1]."""
    max_q: int
    max_kv: int
    masked: bool = False
    """Whether masks other than causal ones exclude keys from the attention of some queries."""
    joined: SampleLengths | None = None
    """Lengths of the samples if the keys of a segment are the text and the latents of a sample: `latent_attention`
    joins them sample by sample. None: it joins the text of all samples and the latents of all samples."""

    def to(self, dtype: torch.dtype) -> SegmentPlan:
        """Returns a plan with additive masks (0, -inf) of this dtype, so that layers do not convert boolean masks."""
        if not self.masked:
            return self
        made: dict[int, Tensor] = {}
        groups = []
        for group in self.groups:
            mask = group.mask
            if mask is not None and mask.dtype == torch.bool:
                if id(mask) not in made:
                    made[id(mask)] = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
                mask = made[id(mask)]
            groups.append(replace(group, mask=mask))
        return replace(self, groups=tuple(groups))


LatentPlan = SegmentPlan | NattenPlan | FlexPlan


def latent_attention(q: Tensor, k: Tensor, v: Tensor, text_k: Tensor, text_v: Tensor, plan: LatentPlan) -> Tensor:
    """Computes attention of each latent to the text and to all or only the neighboring latents of its sample.

    One softmax covers text and latents. With context parallelism, the arguments contain a subset of the heads.

    Args:
        q: Queries of the latents [N_gen, heads, d].
        k: Keys of the latents [N_gen, kv_heads, d].
        v: Values of the latents [N_gen, kv_heads, d].
        text_k: Keys of the text [N_und, kv_heads, d].
        text_v: Values of the text [N_und, kv_heads, d].
        plan: Plan of the packed samples for the attention pattern of the layer, from `plan_latents`.

    Returns:
        Attention output [N_gen, heads, d].
    """
    if isinstance(plan, NattenPlan):
        return run_natten(q, k, v, text_k, text_v, plan)
    if plan.joined is None:
        k, v = torch.cat((text_k, k)), torch.cat((text_v, v))
    else:
        k, v = join_samples(text_k, k, plan.joined), join_samples(text_v, v, plan.joined)
    return run_flex(q, k, v, plan) if isinstance(plan, FlexPlan) else packed_attention(q, k, v, plan)


def join_samples(text: Tensor, latents: Tensor, lengths: SampleLengths) -> Tensor:
    """Concatenates the text and the latents of each packed sample, sample after sample.

    Args:
        text: Text tokens of all samples [N_und, heads, d].
        latents: Latent tokens of all samples [N_gen, heads, d].
        lengths: Number of text tokens and of latent tokens of each sample.

    Returns:
        Tokens [N_und + N_gen, heads, d].
    """
    return JoinSamples.apply(text, latents, lengths)


class JoinSamples(torch.autograd.Function):
    """One concatenation forward and one per input backward.

    Selecting the rows of the joined order by index would copy them twice, and its gradient would be added by atomics.
    """

    @staticmethod
    def forward(ctx: Any, text: Tensor, latents: Tensor, lengths: SampleLengths) -> Tensor:
        ctx.lengths = lengths
        samples = zip(text.split(lengths[0]), latents.split(lengths[1]), strict=True)
        return torch.cat([piece for sample in samples for piece in sample])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        pieces = grad.split([length for sample in zip(*ctx.lengths, strict=True) for length in sample])
        return torch.cat(pieces[::2]), torch.cat(pieces[1::2]), None


def packed_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """Computes attention within the segments of a plan, with the scale 1/sqrt(d).

    Args:
        q: Queries [N_q, heads, d].
        k: Keys [N_kv, kv_heads, d]; with fewer heads than q, this is grouped-query attention.
        v: Values [N_kv, kv_heads, d].
        plan: Segments of queries and the keys that they attend to.

    Returns:
        Attention output [N_q, heads, d].
    """
    if not q.is_cpu and q.dtype in (torch.bfloat16, torch.float16) and not plan.masked:
        return varlen_attention(q, k, v, plan)
    return grouped_attention(q, k, v, plan)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """Computes attention with one call of `scaled_dot_product_attention` per group of segments; supports masks.

    Shapes are those of `packed_attention`: q and the output [N_q, heads, d], k and v [N_kv, kv_heads, d].
    """
    outputs = []
    for group in plan.groups:
        q_batch, k_batch, v_batch = (
            x.index_select(0, rows).unflatten(0, (group.batch, -1)).transpose(1, 2)
            for x, rows in ((q, group.queries), (k, group.keys), (v, group.keys))
        )
        repeat = q.shape[1] // k.shape[1]
        if q.is_cuda and group.mask is not None:  # the fused kernel with a mask has no grouped-query attention
            k_batch, v_batch = (x.repeat_interleave(repeat, dim=1) for x in (k_batch, v_batch))
            repeat = 1
        out = F.scaled_dot_product_attention(
            q_batch, k_batch, v_batch, attn_mask=group.mask, is_causal=plan.causal, enable_gqa=repeat != 1
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if plan.restore is None else joined.index_select(0, plan.restore)


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, plan: SegmentPlan) -> Tensor:
    """Computes attention with one call of a variable-length flash kernel (CUDA, half precision, no masks).

    Shapes are those of `packed_attention`: q and the output [N_q, heads, d], k and v [N_kv, kv_heads, d].
    """
    from torch.nn.attention.varlen import varlen_attn

    if plan.query_rows is not None:
        q = q.index_select(0, plan.query_rows)
    if plan.key_rows is not None:
        k, v = k.index_select(0, plan.key_rows), v.index_select(0, plan.key_rows)
    window = (-1, 0) if plan.causal else (-1, -1)
    out: Tensor = varlen_attn(
        q, k, v, plan.cu_q, plan.cu_kv, plan.max_q, plan.max_kv,
        window_size=window, enable_gqa=q.shape[1] != k.shape[1],
    )  # type: ignore[assignment]  # fmt: skip
    return out if plan.query_rows is None else torch.empty_like(out).index_copy(0, plan.query_rows, out)


def plan_segments(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    key_rows: Tensor | None = None,
    *,
    causal: bool,
    query_rows: Tensor | None = None,
    masks: Sequence[Tensor | None] | None = None,
) -> SegmentPlan:
    """Plans attention, on the CPU, for segments of queries that attend to keys selected for their segment.

    Args:
        query_lengths: Number of queries of each segment.
        key_lengths: Number of keys selected for each segment.
        key_rows: Row indices of the selected keys in k and v, segment after segment, int64 [sum(key_lengths)]; None if
            the keys of the segments are consecutive in k and v.
        causal: Whether query i attends to keys 0..i; then every segment has the same number of keys and queries.
        query_rows: Row indices of the queries in q, segment after segment: a permutation, int64 [N_q]; None if the
            segments are consecutive in q.
        masks: Attention mask of each segment, bool [query length, key length], True where a query attends to a key;
            None for a segment: no mask. Segments with the same mask object are computed in one batch. None instead of
            the list: no segment has a mask.
    """
    q_lengths, kv_lengths = torch.tensor(query_lengths), torch.tensor(key_lengths)
    cu_q, cu_kv = (F.pad(lengths.cumsum(0), (1, 0)) for lengths in (q_lengths, kv_lengths))
    first_rows = torch.empty_like(q_lengths)  # first row of a segment in the concatenated group outputs
    masks = [None] * len(query_lengths) if masks is None else masks
    moved = {id(mask): mask[None, None] for mask in masks if mask is not None}
    groups, joined = [], 0
    for group in group_segments(query_lengths, key_lengths, masks):
        members = torch.tensor(group)
        queries = padded_rows(cu_q[members], q_lengths[members])
        keys = padded_rows(cu_kv[members], kv_lengths[members])
        existing = torch.arange(keys.shape[1]) < kv_lengths[members, None]
        # Padded keys are after all real ones, where the causal mask already hides them from every real query.
        mask = None if causal or bool(existing.all()) else existing[:, None, None]
        mask = moved.get(id(masks[group[0]]), mask)
        first_rows[members] = joined + torch.arange(len(members)) * queries.shape[1]
        joined += queries.numel()
        queries = queries.flatten() if query_rows is None else query_rows[queries.flatten()]
        keys = keys.flatten() if key_rows is None else key_rows[keys.flatten()]
        groups.append(SegmentGroup(queries, keys, len(members), mask))
    outputs = torch.arange(int(cu_q[-1])) + (first_rows - cu_q[:-1]).repeat_interleave(q_lengths)
    restore = outputs if query_rows is None else torch.empty_like(outputs).index_copy_(0, query_rows, outputs)
    in_order = joined == len(restore) and torch.equal(restore, torch.arange(joined))
    return SegmentPlan(
        causal=causal,
        groups=tuple(groups),
        restore=None if in_order else restore,
        query_rows=query_rows,
        key_rows=key_rows,
        cu_q=cu_q.to(torch.int32),
        cu_kv=cu_kv.to(torch.int32),
        max_q=max(query_lengths),
        max_kv=max(key_lengths),
        masked=bool(moved),
    )


def group_segments(
    query_lengths: Sequence[int], key_lengths: Sequence[int], masks: Sequence[Tensor | None]
) -> list[list[int]]:
    """Groups segments of similar size; each group is padded to one size and computed in one batch.

    Padding adds at most the fraction PADDING_SHARE plus PADDING_ENTRIES to the attention scores of a group. Segments
    with a mask are never padded and are grouped only with segments that have the same mask object.

    Args:
        query_lengths: Number of queries of each segment.
        key_lengths: Number of keys of each segment.
        masks: Attention mask of each segment; None: the segment has no mask.

    Returns:
        Indices of the segments of each group.
    """
    groups: list[list[int]] = []
    by_mask: dict[int, list[int]] = {}
    for i, mask in enumerate(masks):
        if mask is not None:
            by_mask.setdefault(id(mask), []).append(i)
    for same in by_mask.values():
        group_size = max(1, GATHERED_KEYS // key_lengths[same[0]])
        groups += [same[start : start + group_size] for start in range(0, len(same), group_size)]
    by_size = sorted(
        (i for i, mask in enumerate(masks) if mask is None), key=lambda i: (key_lengths[i], query_lengths[i])
    )
    padded: list[list[int]] = []
    used = 0
    for i in by_size:
        area = query_lengths[i] * key_lengths[i]
        if padded:
            members = [*padded[-1], i]
            padded_area = len(members) * max(query_lengths[j] for j in members) * max(key_lengths[j] for j in members)
            if padded_area - (used + area) <= PADDING_SHARE * (used + area) + PADDING_ENTRIES:
                padded[-1], used = members, used + area
                continue
        padded.append([i])
        used = area
    return groups + [sorted(members) for members in padded]


def padded_rows(starts: Tensor, lengths: Tensor) -> Tensor:
    """Returns the row numbers of each segment, padded with its last row: int64 [segments, longest length].

    Args:
        starts: First row of each segment, [segments].
        lengths: Number of rows of each segment, [segments].
    """
    offsets = torch.arange(int(lengths.max()))
    return starts[:, None] + torch.minimum(offsets, lengths[:, None] - 1)
