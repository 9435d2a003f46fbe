"""`HoldsWeight`: a layer whose weight exists in another form than as a parameter with memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from worldsmith.models.weight_sum import WeightSum

if TYPE_CHECKING:
    from torch import Tensor


class HoldsWeight(nn.Module, ABC):
    """A layer with a quantized base weight. The frozen parameter `weight` stays on the meta device, for its name and
    shape."""

    weight: Tensor
    device = torch.device("cpu")
    """Device of the quantized weight; the model sets it."""
    taken: WeightSum | None = None
    """Checksum of the original weight, by which a checkpoint identifies it."""
    held_bytes: int
    """Size of the quantized weight, scales included; known before it has a value."""

    @abstractmethod
    def hold(self, value: Tensor) -> None:
        """Quantizes and stores the weight `value`, which has the parameter's shape, on any device."""


@contextmanager
def without_memory(layers: Collection[HoldsWeight]) -> Iterator[None]:
    """Context manager: removes the weights of the layers, so that they are not allocated."""
    weights = [layer.weight for layer in layers]
    for layer in layers:
        del layer.weight
    try:
        yield
    finally:
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight = weight


@contextmanager
def with_memory(layer: HoldsWeight) -> Iterator[Tensor]:
    """Context manager: allocates the layer's weight for its initial value."""
    weight = layer.weight
    layer.weight = nn.Parameter(torch.empty(weight.shape), requires_grad=False)
    try:
        yield layer.weight.detach()
    finally:
        layer.weight = weight
