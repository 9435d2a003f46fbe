"""One pass of a backbone over a batch: a single call of the vision encoder, hidden states, and logits where asked.

All of it is one entry of the network, so that its weights are all-gathered once around it. Samples that share a row
attend one after the other, without a mask: one call for the row would need a mask of its length squared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

from worldsmith.models.real_values import real_values

Head = Callable[[Tensor], Tensor]
"""Hidden states [n, width] to logits [n, vocabulary]."""
BY_SAMPLE = "sdpa_by_sample"
"""Name under which `attend` is registered in transformers."""
IN_WINDOWS = "flash_in_windows"
"""Name of `attend_in_windows`; transformers passes the windows' borders only to names that contain flash."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """One batch on the device."""

    input_ids: Tensor
    """[rows, length]."""
    position_ids: Tensor
    """[rows, length], or [4, rows, length]: plain ones, which begin at 0 for each sample, and three axes (mRoPE)."""
    attention_mask: Tensor | None
    """[rows, length], true for tokens; None: a packed row, whose samples the plain positions keep apart."""
    predicting: Tensor
    """[S]: places in the flattened rows from whose states supervised tokens are predicted."""
    targets: Tensor
    """[S]: those tokens."""
    sample_lengths: list[int] | None = None
    """Tokens of each sample of a packed row."""
    patches: Tensor | None = None
    """float32 [patches, values], those of all images, then those of all videos; None for a text decoder."""
    grids: Tensor | None = None
    """[media, 3]."""
    visual_tokens: Mapping[str, int] = field(default_factory=dict)
    """"image" and "video" → how many tokens of each, in this order."""


def loss_of(network: Any, inputs: Inputs, loss: Callable[[Tensor, Tensor, Head], Tensor]) -> Tensor:
    """`loss` of the hidden states [S, width] that predict supervised tokens, of those tokens [S], and of the head."""
    states = hidden_states(network, inputs).flatten(0, 1)
    return loss(states[inputs.predicting], inputs.targets, network.get_output_embeddings())


def hidden_states(network: Any, inputs: Inputs) -> Tensor:
    """[rows, length, width], after the last norm."""
    decoder = network.base_model if network.base_model is not network else network.model
    given: dict[str, Any] = {}
    if inputs.patches is not None:
        given["mm_encoder_outputs"] = visual_features(network, inputs)
    if getattr(decoder, "language_model", decoder).config._attn_implementation == BY_SAMPLE:
        given["sample_lengths"] = inputs.sample_lengths
    outputs = decoder(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
        use_cache=False,
        **given,
    )
    states: Tensor = outputs[0]
    return states


def visual_features(network: Any, inputs: Inputs) -> dict[str, BaseModelOutputWithPooling]:
    """The encoder's output for images and for videos, from one call for both: sharded ranks make as many calls."""
    visual = network.model.visual
    encoded = visual(inputs.patches, grid_thw=inputs.grids, return_dict=True, **windows(visual.config, inputs.grids))
    features: dict[str, BaseModelOutputWithPooling] = {}
    start = 0
    for kind, count in inputs.visual_tokens.items():
        taken = slice(start, start + count)
        levels = getattr(encoded, "deepstack_features", None)  # those of Qwen3-VL
        added = {} if levels is None else {"deepstack_features": [[level[taken]] for level in levels]}
        features[kind] = type(encoded)(pooler_output=[encoded.pooler_output[taken]], **added)
        start += count
    return features


def windows(config: Any, grids: Any) -> dict[str, Any]:
    """Order and borders of an encoder's windows (Qwen2.5-VL), whose sizes follow from the values of `grids`."""
    if not hasattr(config, "window_size"):
        return {}
    with real_values():
        order, borders = get_vision_window_index(
            grids, config.spatial_merge_size, window_size=config.window_size, patch_size=config.patch_size
        )
        frames = get_vision_cu_seqlens(grids)
        longest = {name: int(ends.diff().max()) for name, ends in (("", frames), ("window_", borders))}
    given = {"window_index": order, "cu_window_seqlens": borders, "cu_seqlens": frames}
    return given | {f"max_{name}seqlen": length for name, length in longest.items()}


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
    """Attention of samples that share a row: [1, heads, N, width] to [1, N, heads, width].

    `sample_lengths`: tokens of each sample. Without them, and for layers with a mask (such as a sliding window), this
    is transformers' sdpa.
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
    """Returns sdpa's mask; None for a packed row of causal samples, where only the packing would need one."""
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
    """Attention within windows whose borders are `cu_seq_lens_q`: [1, heads, N, width] to [1, N, heads, width].

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
