"""First values of the network's weights: those of torch's layers, each by its own name and seed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from worldsmith.models.fill import chosen, fill, seed_of
from worldsmith.models.parameter_names import native_parameters


@torch.no_grad()
def init_weights(network: Any, seed: int, names: Collection[str] | None = None) -> None:
    """Fills the parameters with these native names (None: all) in place, sharded or not.

    A value depends on the seed and the parameter's name alone. Raises ValueError for an unknown name.
    """
    parameters = native_parameters(network)
    for name, parameter in chosen(parameters, names).items():
        weight = parameters.get(f"{name.rpartition('.')[0]}.weight", parameter)
        fill(parameter, initial_value(name, parameter.shape, weight.shape, seed))


def initial_value(name: str, shape: torch.Size, weight: torch.Size, seed: int) -> Tensor:
    """The float32 value of a parameter whose layer has a weight of that shape.

    A weight and its bias are uniform within ±1/sqrt(inputs), as a linear layer or a convolution draws them; a norm
    begins with ones and zeros, an adapter's B with zeros, a table normal with a deviation of 1/sqrt(channels).
    """
    if name.endswith(".lora_B.weight"):
        return torch.zeros(shape)
    if len(weight) == 1:
        return torch.full(shape, float(name.endswith(".weight")))
    stream = torch.Generator().manual_seed(seed_of(seed, name))
    if not name.endswith((".weight", ".bias")):
        return torch.empty(shape).normal_(0.0, shape[-1] ** -0.5, generator=stream)
    limit = weight[1:].numel() ** -0.5
    return torch.empty(shape).uniform_(-limit, limit, generator=stream)
