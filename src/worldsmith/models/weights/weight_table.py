"""Weight table: size and training state of every parameter of a run, from the config or from the network.

This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.models.converters.converter import quantized_layers
from worldsmith.models.lora import is_adapter, match_targets
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from worldsmith.models.model import Model


@dataclass(frozen=True, slots=True)
class Weight:
    """Shape and training state of one parameter, which determine its memory."""

    shape: tuple[int, ...]
    trained: bool
    reached: bool
    """Whether the parameter receives gradients if it is trained, so that it has optimizer state."""
    exact: bool
    """Whether the parameter stays in float32; True for adapters and for parameters of `full_precision` modules."""
    quantized_bytes: int | None = None
    """Bytes of the weight in quantized form, stored on every rank; None: the weight is not quantized."""

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


Table = dict[str, Weight]
"""Weights by internal parameter name."""


def weight_table(config: Model.Config, keys_to_select: Sequence[str] = ()) -> Table | None:
    """Computes shape and training state of each parameter from a model config, without building the network.

    Args:
        config: Config of the model.
        keys_to_select: Substrings of parameter names (`optimizer.keys_to_select`); only parameters that contain one and
            are not frozen by the config are trained. (): all that are not frozen.

    Returns:
        `Weight` of each parameter by internal parameter name, including LoRA adapters. None if the shapes are known
        only once the network is built.

    Raises:
        ValueError: If a LoRA target or a freeze pattern of the config matches nothing.
    """
    shapes, quantized = config.shapes(), dict[str, int]()
    if shapes is None:
        return None
    exact, linear = set(config.full_precision), config.linear_layers(shapes)
    inside = tuple(f"{path}." for path in config.layer_lists)
    for converter in config.converters:
        layers = {path: shapes[f"{path}.weight"] for path in linear if path.startswith(inside)}
        found = converter.quantized_bytes({p: s for p, s in layers.items() if exact.isdisjoint(p.split("."))})
        if found is None:
            return None
        quantized |= found
    if config.lora_enabled:
        known = config.adaptable_layers()
        try:
            targets = match_targets(config.lora_target_modules, linear if known is None else known)
        except ValueError:
            if known is not None:
                raise
            return None  # the network has the last word
        for path in {path for paths in targets.values() for path in paths}:
            outputs, inputs = shapes[f"{path}.weight"]
            shapes[f"{path}.lora_A.weight"] = (config.lora_rank, inputs)
            shapes[f"{path}.lora_B.weight"] = (outputs, config.lora_rank)
    frozen = set(config.frozen(list(shapes)))
    trained = {
        name
        for name in shapes
        if name not in frozen
        and (is_adapter(name) or not config.lora_enabled)
        and (not keys_to_select or any(pattern in name for pattern in keys_to_select))
    }
    names_without_gradients = tuple(config.names_without_gradients())
    return {
        name: Weight(
            shape,
            name in trained,
            not name.startswith(names_without_gradients),
            is_adapter(name) or not exact.isdisjoint(name.split(".")[:-1]),
            quantized.get(name.removesuffix(".weight")),
        )
        for name, shape in shapes.items()
    }


def table_of(model: Model) -> Table:
    """Returns shape and training state of each parameter of a built model, by internal parameter name.

    Call it after `requires_grad` was set. The network may be on the meta device or sharded; shapes are
    those of the complete parameters.
    """
    quantized = quantized_layers(model.network) if model.conversions else {}
    exact = {id(parameter) for module in model.parts().full_precision for parameter in module.parameters()}
    names_without_gradients = tuple(model.config.names_without_gradients())
    return {
        name: Weight(
            tuple(parameter.shape),
            parameter.requires_grad,
            not name.startswith(names_without_gradients),
            is_adapter(name) or id(parameter) in exact,
            quantized[name].quantized_bytes if name in quantized else None,
        )
        for name, parameter in native_parameters(model.network).items()
    }


def counts(table: Mapping[str, Weight]) -> tuple[int, int]:
    """Returns (number of elements of all parameters, number of elements of the trained parameters) in `table`."""
    return sum(w.numbers for w in table.values()), sum(w.numbers for w in table.values() if w.trained)
