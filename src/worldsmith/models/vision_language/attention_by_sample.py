"""Attention of samples that share a row, one sample after the other: no mask, and no score between two of them.

One call for the whole row would need a mask of its length squared, and as much work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

BY_SAMPLE = "sdpa_by_sample"
"""The name under which transformers knows it."""


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


AttentionInterface.register(BY_SAMPLE, attend)
AttentionMaskInterface.register(BY_SAMPLE, make_mask)
