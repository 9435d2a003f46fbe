"""One pass of a backbone over a batch: a single call of the vision encoder, hidden states, and logits where asked.

All of it is one entry of the network, so that its weights are gathered once around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

from worldsmith.families.vision_language.network.attention_by_sample import BY_SAMPLE
from worldsmith.models.real_values import real_values

if TYPE_CHECKING:
    from worldsmith.families.vision_language.inputs import Inputs

Head = Callable[[Tensor], Tensor]
"""Hidden states [n, width] to logits [n, vocabulary]."""


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
