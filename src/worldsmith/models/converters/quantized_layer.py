"""`QuantizedLayer`: a layer that stores its weight in quantized form and not as a parameter with memory."""

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


class QuantizedLayer(nn.Module, ABC):
    """Base class of a layer with a quantized base weight.

    Its frozen parameter `weight` stays on the meta device and only provides name and shape.
    """

    weight: Tensor
    device = torch.device("cpu")
    """Device of the quantized weight; set when the model allocates its network."""
    source_checksum: WeightSum | None = None
    """Checksum of the original weight, by which a checkpoint identifies it."""
    quantized_bytes: int
    """Bytes of the quantized weight including scales; known before the weight has values."""

    @abstractmethod
    def quantize(self, value: Tensor) -> None:
        """Quantizes and stores `value`, which has the shape of `weight` and may be on any device."""


@contextmanager
def without_memory(layers: Collection[QuantizedLayer]) -> Iterator[None]:
    """Context manager: removes the parameter `weight` from layers, so that `to_empty` does not allocate it.

    The parameter is restored, on the meta device, when the context ends.
    """
    weights = [layer.weight for layer in layers]
    for layer in layers:
        del layer.weight
    try:
        yield
    finally:
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight = weight


@contextmanager
def with_memory(layer: QuantizedLayer) -> Iterator[Tensor]:
    """Context manager: allocates the layer's `weight` on the default device and yields it, to be filled.

    The parameter on the meta device is restored when the context ends.
    """
    weight = layer.weight
    layer.weight = nn.Parameter(torch.empty(weight.shape), requires_grad=False)
    try:
        yield layer.weight.detach()
    finally:
        layer.weight = weight
