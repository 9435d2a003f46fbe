"""Forward pass of a backbone over a batch: one call of the vision encoder, hidden states, and logits where needed.

All of it is one entry of the network, so that its weights are all-gathered once around it. Samples that share a row
attend one after the other, without a mask: one call for the row would need a mask of its length squared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from worldsmith.models.real_values import real_values

Head = Callable[[Tensor], Tensor]
"""LM head: function from hidden states [n, width] to logits [n, vocabulary]."""
BY_SAMPLE, BY_BORDERS = "sdpa_by_sample", "sdpa_by_borders"
"""Names of `attend` in transformers' registry: for eager layers, and for compiled ones, which get no sample lengths."""
IN_WINDOWS = "flash_in_windows"
"""Name of `attend_in_windows` in transformers' registry; only names that contain "flash" receive window boundaries."""
HALF = (torch.bfloat16, torch.float16)
"""Dtypes of the variable-length attention kernels."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of one batch for a forward pass, on the device of the network or still on the CPU."""

    input_ids: Tensor
    """[rows, length]."""
    position_ids: Tensor
    """[rows, length], or [4, rows, length]: text positions, which restart at 0 for each sample, and three axes
    (mRoPE)."""
    attention_mask: Tensor | None
    """[rows, length], true for tokens; None: a packed row, whose samples are separated by the text positions."""
    predicting: Tensor
    """[S]: indices, in the flattened rows, of the states from which supervised tokens are predicted."""
    targets: Tensor
    """[S]: ids of the supervised tokens."""
    sample_lengths: list[int] | None = None
    """Tokens of each sample of a packed row."""
    cu_seqlens: Tensor | None = None
    """int32 [samples + 1]: index of the first token of each sample of a packed row, then the length of the row."""
    patches: Tensor | None = None
    """float32 [patches, values]: patches of all images, then patches of all videos; None for a text decoder."""
    raw_patches: Mapping[str, Tensor] = field(default_factory=dict)
    """uint8 [patches, values] by kind of media, "image" before "video", from which `patches` are computed."""
    grids: list[list[int]] | None = None
    """Number of frames, rows and columns in patches of each image or video."""
    vision: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the vision encoder, such as position ids, computed from `grids` by `plan_vision`."""
    visual_rows: Tensor | None = None
    """int64 [V]: indices, in the flattened rows, of the tokens of images, then of videos; None for a text decoder."""


def loss_of(network: Any, inputs: Inputs, loss: Callable[[Tensor, Tensor, Head], Tensor]) -> Tensor:
    """Computes a loss over the supervised tokens of a batch, and returns it.

    `make_network` binds this function to the network as a method, so that FSDP all-gathers the weights for each call.

    Args:
        network: The transformers model.
        inputs: Inputs of the batch.
        loss: Called with hidden states [S, width], target tokens [S] and the LM head; returns the loss.
    """
    states = hidden_states(network, inputs).flatten(0, 1)
    return loss(states[inputs.predicting], inputs.targets, network.get_output_embeddings())


def hidden_states(network: Any, inputs: Inputs) -> Tensor:
    """Returns the decoder's hidden states after the last norm, [rows, length, width]."""
    decoder = network.base_model if network.base_model is not network else network.model
    decoder = getattr(decoder, "language_model", decoder)
    given: dict[str, Any] = {"input_ids": inputs.input_ids} if inputs.patches is None else embed(network, inputs)
    attention, mask = decoder.config._attn_implementation, inputs.attention_mask
    if attention in (BY_SAMPLE, BY_BORDERS) and inputs.sample_lengths is not None:
        given |= {"cu_seqlens": inputs.cu_seqlens, "max_length": max(inputs.sample_lengths)}
        if attention == BY_SAMPLE:
            given["sample_lengths"] = inputs.sample_lengths
        if attends_fully(decoder.config):
            mask = inputs.input_ids.new_empty(0, 0, 0, 0)
    outputs = decoder(attention_mask=mask, position_ids=inputs.position_ids, use_cache=False, **given)
    return outputs[0]


def attends_fully(config: Any) -> bool:
    """Returns whether no layer of a decoder limits attention to a window, for which transformers would make a mask.

    For a packed row without windows, `hidden_states` passes an empty mask of four axes. Transformers hands it on, and
    `attend` ignores it. Without a mask, transformers would read from the device whether positions restart in the row.
    """
    limits = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    kinds = getattr(config, "layer_types", None)
    return all(kind == "full_attention" for kind in kinds) if kinds else not any(limits)


def embed(network: Any, inputs: Inputs) -> dict[str, Any]:
    """Returns the arguments of the decoder that stand for the tokens: embeddings, in which media replace placeholders.

    One call of the vision encoder computes the features of all images and videos. All ranks must call it equally often,
    because its weights are sharded. Transformers does the same with masks, and reads their sums from the device.
    """
    rows = inputs.visual_rows
    assert rows is not None
    with real_values():
        grids = torch.tensor(inputs.grids)
    encoded = network.model.visual(inputs.patches, grid_thw=grids, return_dict=True, **inputs.vision)
    embedded = network.get_input_embeddings()(inputs.input_ids)
    features = encoded.pooler_output[: len(rows)].to(embedded.dtype)  # without those of a dummy image
    found = {"inputs_embeds": embedded.flatten(0, 1).index_copy(0, rows, features).view_as(embedded)}
    levels = getattr(encoded, "deepstack_features", None)  # those of Qwen3-VL
    if levels is None:
        return found
    return found | {"visual_pos_masks": rows, "deepstack_visual_embeds": [level[: len(rows)] for level in levels]}


def add_by_rows(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function that adds visual features to hidden states, for the method `_deepstack_process` of a decoder.

    Args:
        original: That method, which is used if the tokens are given as a mask, as in generation.
    """

    def add(hidden_states: Tensor, rows: Tensor, features: Tensor) -> Tensor:
        if rows.dtype == torch.bool:
            return original(hidden_states, rows, features)
        flat = hidden_states.flatten(0, 1)
        return flat.index_add(0, rows, features.to(flat.dtype)).view_as(hidden_states)

    return add


def plan_vision(visual: Any, grids: Tensor) -> dict[str, Any]:
    """Computes the keyword arguments of a vision encoder that depend only on the sizes of images and frames.

    They are computed once per batch on the CPU; otherwise the encoder would copy sizes from the device to the host.

    Args:
        visual: Vision encoder of transformers.
        grids: [media, 3] on the CPU: frames, rows and columns in patches.

    Returns:
        Keyword arguments on the CPU: position ids, cumulative lengths of frames (and of Qwen2.5-VL's windows) and the
        max length of each.
    """
    config, merge = visual.config, visual.config.spatial_merge_size
    frames = get_vision_cu_seqlens(grids)
    found = {"cu_seqlens": frames, "max_seqlen": int(frames.diff().max())}
    found["position_ids"] = get_vision_position_ids(grids, merge)
    if hasattr(config, "window_size"):
        order, borders = get_vision_window_index(
            grids, merge, window_size=config.window_size, patch_size=config.patch_size
        )
        found |= {"window_index": order, "cu_window_seqlens": borders}
        found["max_window_seqlen"] = int(borders.diff().max())
    if hasattr(visual, "num_grid_per_side"):
        found["interp_indices"], found["interp_weights"] = get_vision_interpolation_indices_and_weights(
            grids,
            num_grid_per_side=visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=merge,
        )
    return found


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seqlens: Tensor | None = None,
    max_length: int = 0,
    sample_lengths: list[int] | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Computes the attention of samples that share a row: [1, heads, N, width] to [1, N, heads, width].

    On CUDA in half precision this is one call of a variable-length kernel. Without `cu_seqlens`, and for layers with a
    mask (such as a sliding window), it is transformers' sdpa.

    Args:
        module: The layer; `module.is_causal` states whether attention is causal.
        query: [1, heads, N, width].
        key: Like `query`, with the same number of heads or fewer.
        value: Like `key`.
        attention_mask: None, or what transformers' sdpa accepts; an empty mask is ignored.
        cu_seqlens: int32 [samples + 1], first token of each sample, then N; None for padded rows.
        max_length: Number of tokens of the longest sample.
        sample_lengths: Number of tokens of each sample; None in compiled layers, where other lengths would recompile.
        **settings: Arguments of transformers' sdpa, such as `scaling`.
    """
    if attention_mask is not None and attention_mask.numel() == 0:
        attention_mask = None
    if cu_seqlens is not None and attention_mask is None:
        if not query.is_cpu and query.dtype in HALF:
            return attend_by_length(module, query, key, value, cu_seqlens, max_length, settings), None
        if sample_lengths is None:
            out = attend_by_sample(query, key, value, cu_seqlens, settings["scaling"])
            return out.transpose(1, 2), None
    if sample_lengths is None or attention_mask is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    samples = zip(*(states.split(sample_lengths, dim=2) for states in (query, key, value)))
    found = [sdpa_attention_forward(module, q, k, v, None, **settings)[0] for q, k, v in samples]
    return torch.cat(found, dim=1), None


def attend_by_length(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    settings: Mapping[str, Any],
) -> Tensor:
    """Computes attention within each sample of a row by the flash kernels (CUDA, half precision).

    Args:
        module: The layer; `module.is_causal` applies unless `settings` has `is_causal`.
        query: [1, heads, N, width].
        key: Like `query`, with the same number of heads or fewer.
        value: Like `key`.
        cu_seqlens: int32 [samples + 1], first token of each sample, then N.
        max_length: Number of tokens of the longest sample.
        settings: Arguments of transformers' attention functions: `scaling`, `is_causal`.

    Returns:
        [1, N, heads, width].
    """
    from torch.nn.attention.varlen import varlen_attn

    causal = settings.get("is_causal")
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    out: Tensor = varlen_attn(
        q, k, v, cu_seqlens, cu_seqlens, max_length, max_length,
        scale=settings.get("scaling"),
        window_size=(-1, 0) if (module.is_causal if causal is None else causal) else (-1, -1),
        enable_gqa=q.shape[1] != k.shape[1],
    )  # type: ignore[assignment]  # fmt: skip
    return out[None]


@torch.library.custom_op("worldsmith::attend_by_sample", mutates_args=())
def attend_by_sample(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, scale: float) -> Tensor:
    """Computes causal attention within each packed sample of a row, for compiled layers without flash kernels.

    It is one operator of the graph: other sample lengths do not recompile it, and no N² mask is built.

    Args:
        query: [1, heads, N, width].
        key: Like `query`, with the same number of heads or fewer.
        value: Like `key`.
        cu_seqlens: int32 [samples + 1], first token of each sample, then N.
        scale: Factor of the scores before the softmax.

    Returns:
        [1, heads, N, width].
    """
    samples = split_samples(cu_seqlens, query, key, value)
    return torch.cat([causal_sdpa(q, k, v, scale) for q, k, v in samples], dim=2)


@torch.library.custom_op("worldsmith::attend_by_sample_backward", mutates_args=())
def attend_by_sample_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes, in float32, the gradients of query, key and value of `attend_by_sample`, given that of its output.

    Args:
        gradient: Gradient of the output, [1, heads, N, width].
        query: As in the forward pass.
        key: As in the forward pass.
        value: As in the forward pass.
        cu_seqlens: As in the forward pass.
        scale: As in the forward pass.

    Returns:
        The gradients, with the shape and dtype of query, key and value.
    """
    found = []
    repeat = query.shape[1] // key.shape[1]
    for states in split_samples(cu_seqlens, gradient, query, key, value):
        upstream, q, k, v = (x.float() for x in states)
        k, v = (x.repeat_interleave(repeat, dim=1) for x in (k, v))
        future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
        weights = (scale * q @ k.mT).masked_fill(future, -torch.inf).softmax(-1)
        by_weight = upstream @ v.mT
        by_score = scale * weights * (by_weight - (by_weight * weights).sum(-1, keepdim=True))
        shared = (x.unflatten(1, (-1, repeat)).sum(2) for x in (by_score.mT @ q, weights.mT @ upstream))
        found.append((by_score @ k, *shared))
    q, k, v = (torch.cat(parts, dim=2).to(query.dtype) for parts in zip(*found))
    return q, k, v


def split_samples(cu_seqlens: Tensor, *states: Tensor) -> list[tuple[Tensor, ...]]:
    """Returns, for each packed sample, its slices of the [1, heads, N, width] tensors `states`.

    `cu_seqlens` [samples + 1] contains the index of the first token of each sample, then N.
    """
    return [tuple(x[:, :, start:end] for x in states) for start, end in pairwise(cu_seqlens.tolist())]


def causal_sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    shared = query.shape[1] != key.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=shared
    )


@attend_by_sample.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, scale: float) -> Tensor:
    return query.new_empty(query.shape)


@attend_by_sample_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *states, ctx.scale = inputs
    ctx.save_for_backward(*states)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_by_sample_backward(gradient.contiguous(), *ctx.saved_tensors, ctx.scale), None, None


attend_by_sample.register_autograd(_backward, setup_context=_save)


def make_mask(
    *,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **settings: Any,
) -> Tensor | None:
    """Returns the attention mask for transformers' sdpa; None for a packed row of causal samples.

    `attend` separates the samples of a packed row without a mask.

    The arguments are those of transformers' `sdpa_mask`.
    """
    if attention_mask is None and local_size is None and not allow_is_causal_skip:
        return None
    settings |= {"local_size": local_size, "allow_is_causal_skip": allow_is_causal_skip}
    return sdpa_mask(attention_mask=attention_mask, **settings)


def attend_in_windows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Computes attention within windows with the borders `cu_seq_lens_q`: [1, heads, N, width] to [1, N, heads, width].

    On CUDA in half precision this is one call of a variable-length kernel. Otherwise consecutive windows of equal
    length are batched; transformers makes one call per window. The arguments are those of transformers' attention
    functions; `cu_seq_lens_q` is int32 [windows + 1].
    """
    if not query.is_cpu and query.dtype in HALF:
        return attend_by_length(module, query, key, value, cu_seq_lens_q, max_length_q, settings), None
    for name in ("cu_seq_lens_k", "max_length_k"):
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


for name in (BY_SAMPLE, BY_BORDERS):
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)
AttentionInterface.register(IN_WINDOWS, attend_in_windows)
