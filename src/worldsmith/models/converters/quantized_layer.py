"""`QuantizedLayer`: a layer that stores its weight in quantized form and not as a parameter with memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from worldsmith.models.weight_sum import WeightSum


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

    in_host_ram = False
    """Whether the quantized weight stays in host RAM and is on `device` only from `copy_to_device` to `drop_copies`."""
    host_tensors: Mapping[str, Tensor] = MappingProxyType({})
    """Tensors of the quantized weight in host RAM, by attribute; empty unless `in_host_ram`."""

    @abstractmethod
    def quantize(self, value: Tensor) -> None:
        """Quantizes `value` on `device` and keeps the tensors of the result as attributes.

        Args:
            value: Weight with the shape of `weight`, on any device.
        """

    def store(self, value: Tensor) -> None:
        """Quantizes and stores `value`, which has the shape of `weight` and may be on any device."""
        self.quantize(value)
        if self.in_host_ram:
            found = {name: tensor for name, tensor in vars(self).items() if torch.is_tensor(tensor)}
            pinned = self.device.type == "cuda"
            self.host_tensors = {
                name: torch.empty_like(tensor, device="cpu", pin_memory=pinned).copy_(tensor)
                for name, tensor in found.items()
            }
            self.drop_copies()

    def copy_to_device(self) -> None:
        """Starts to copy the tensors in host RAM to `device` on the current stream."""
        for name, tensor in self.host_tensors.items():
            setattr(self, name, tensor.to(self.device, non_blocking=True, copy=True))

    def drop_copies(self) -> None:
        """Frees the copies on `device`."""
        vars(self).update(self.host_tensors)


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
