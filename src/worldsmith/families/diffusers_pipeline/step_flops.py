"""Floating-point operations that a training step of a network of diffusers needs, as PyTorch counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from worldsmith.families.diffusers_pipeline.model import PipelineModel


def without_memory(arguments: Any) -> Any:
    """The same with tensors of the same shapes that hold nothing."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("meta"), arguments)


def step_flops(model: PipelineModel, arguments: Sequence[Any], beside: Mapping[str, Any]) -> int:
    """Operations of the matrix products of `predict` and of its backward pass, recomputation not counted.

    Counted on a copy of the network without memory, in which the same parameters are trained. The arguments are those
    of `predict`, `without_memory`.
    """
    copy = replace(model.config, precision="float32", converters=[]).build(device="meta")
    trained = {name for name, parameter in native_parameters(model.network).items() if parameter.requires_grad}
    for name, parameter in native_parameters(copy.network).items():
        parameter.requires_grad_(name in trained)
    with FlopCounterMode(display=False) as counter:
        copy.predict(*arguments, **beside).sum().backward()
    return int(counter.get_total_flops())
