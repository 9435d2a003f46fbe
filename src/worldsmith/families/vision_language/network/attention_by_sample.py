"""Attention of samples that share a row, one sample after the other: no mask, and no score between two of them.

One call for the whole row would need a mask of its length squared, and as much work.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from worldsmith.models.real_values import real_values

BY_SAMPLE = "sdpa_by_sample"
"""The name under which transformers knows it."""
IN_WINDOWS = "flash_in_windows"
"""That of attention within windows; transformers gives the borders only to what is called flash."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sample_lengths: list[int] | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """[1, N, heads, width] of [1, heads, N, width]; `sample_lengths` are those of the samples that share the row.

    Without them, and for layers with a mask (a sliding window, say), it is transformers' sdpa.
    """
    if sample_lengths is None or attention_mask is not None:
        whole: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return whole
    samples = zip(*(states.split(sample_lengths, dim=2) for states in (query, key, value)))
    found = [sdpa_attention_forward(module, q, k, v, None, **settings)[0] for q, k, v in samples]
    return torch.cat(found, dim=1), None


def make_mask(
    *,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **settings: Any,
) -> Tensor | None:
    """sdpa's mask; none for a row of samples that see all before them: nothing but the packing asks for it there."""
    if attention_mask is None and local_size is None and not allow_is_causal_skip:
        return None
    settings |= {"local_size": local_size, "allow_is_causal_skip": allow_is_causal_skip}
    mask: Tensor | None = sdpa_mask(attention_mask=attention_mask, **settings)
    return mask


def attend_in_windows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    **settings: Any,
) -> tuple[Tensor, None]:
    """[1, N, heads, width] of [1, heads, N, width], which attend within the borders `cu_seq_lens_q`.

    Neighboring windows of one length are one call, where transformers makes a call of each.
    """
    for name in ("cu_seq_lens_k", "max_length_q", "max_length_k"):
        settings.pop(name, None)
    with real_values():
        lengths = cu_seq_lens_q.diff().tolist()
    runs = [(length, len(list(same))) for length, same in groupby(lengths)]
    parts = zip(*(states.split([length * count for length, count in runs], dim=2) for states in (query, key, value)))
    found = []
    for (length, count), states in zip(runs, parts):
        q, k, v = (s.unflatten(2, (count, length))[0].transpose(0, 1) for s in states)
        found.append(sdpa_attention_forward(module, q, k, v, None, **settings)[0].flatten(0, 1)[None])
    return torch.cat(found, dim=1), None


AttentionInterface.register(BY_SAMPLE, attend)
AttentionInterface.register(IN_WINDOWS, attend_in_windows)
AttentionMaskInterface.register(BY_SAMPLE, make_mask)
