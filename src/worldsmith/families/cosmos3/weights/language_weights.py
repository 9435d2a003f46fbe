"""The language model inside a generator, under the names of a Qwen3-VL folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.families.cosmos3.weights.diffusers_keys import STACK
from worldsmith.families.cosmos3.weights.network_settings import network_difference, network_of
from worldsmith.families.cosmos3.weights.tensor_names import is_generation, text_settings
from worldsmith.models.lora import is_adapter

HEAD = "language_model.lm_head.weight"
QWEN_STACK, QWEN_HEAD = "model.language_model.", "lm_head.weight"


def language_weights(source: WeightSource, config: Mapping[str, Any]) -> dict[str, str]:
    """Names in a Qwen3-VL folder with this config.json → native names of the same weights.

    Raises UserError for a language model that computes something else, and for one with adapters beside it.
    """
    network = network_of(source)
    try:
        difference = network_difference(text_settings(config), network)
    except ValueError as error:
        raise UserError(f"the model folder's config.json: {error}") from error
    differing = [*difference.meanings, *difference.sizes]
    if differing:
        raise UserError(
            f"{source.describe} has another language model than the model folder: {'; '.join(differing)}. Give the "
            "folder of a model of the same size as --vlm-model-name"
        )
    names = [name for name in source.shapes if name.startswith("language_model.") and not is_generation(name)]
    adapted = [name for name in names if is_adapter(name)]
    if adapted:
        raise UserError(
            f"{source.describe} has adapters beside its language model, such as {adapted[0]}; merge them first: "
            "`worldsmith export RUN --format native -o DIR`"
        )
    return {qwen_name(name): name for name in names if ".visual." not in name}


def qwen_name(name: str) -> str:
    """`language_model.model.layers.0.…` → `model.language_model.layers.0.…`; the head is outside of it."""
    return QWEN_HEAD if name == HEAD else QWEN_STACK + name.removeprefix(STACK)
