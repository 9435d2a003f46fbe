"""Moves the tensors of nested containers to a device, all in one copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64
"""Each tensor starts at a multiple of this number of bytes in the buffer, so that it can have any dtype there."""


class StagedTensors:
    """Nested containers whose tensors wait in one buffer on the host, for one copy to a device that does not block.

    Tensors that are on another device than the CPU stay as they are. For the device CPU, no tensor is copied.

    Args:
        values: Lists, tuples, dicts and dataclasses with tensors; other objects are not searched.
        device: Device to which `move` copies them. For CUDA, the buffer is in pinned memory.
    """

    def __init__(self, values: Any, device: torch.device) -> None:
        self.values, self.device = values, device
        self.starts: dict[int, int] = {}
        """First byte in the buffer of each tensor, by its `id`."""
        self.buffer: Tensor | None = None
        if device.type == "cpu":
            return
        tensors: dict[int, Tensor] = {}
        map_tensors(values, lambda tensor: tensors.setdefault(id(tensor), tensor))
        size = 0
        for key, tensor in tensors.items():
            if tensor.device.type == "cpu":
                self.starts[key] = size
                size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if size:
            self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
            for key in self.starts:
                self.view(self.buffer, tensors[key]).copy_(tensors[key])

    def move(self) -> Any:
        """Returns the containers with their tensors on the device; equal tensors of one object stay one tensor."""
        if self.buffer is None:
            return self.values
        moved = self.buffer.to(self.device, non_blocking=True)
        staged = self.starts.keys()
        return map_tensors(self.values, lambda tensor: self.view(moved, tensor) if id(tensor) in staged else tensor)

    def view(self, buffer: Tensor, tensor: Tensor) -> Tensor:
        """Returns the part of a buffer that belongs to `tensor`, with its shape and dtype."""
        start = self.starts[id(tensor)]
        return buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def move_tensors(values: Any, device: torch.device) -> Any:
    """Returns nested lists, tuples, dicts and dataclasses with their CPU tensors copied to a device at once."""
    return StagedTensors(values, device).move()


def map_tensors(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns nested lists, tuples, dicts and dataclasses with each tensor replaced by `change(tensor)`.

    Containers that occur several times are changed once. Containers of numbers and texts are returned unchanged.
    """
    known: dict[int, Any] = {}

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if id(value) in known:
            return known[id(value)]
        if isinstance(value, dict):
            made: Any = {name: visit(part) for name, part in value.items()}
        elif isinstance(value, (list, tuple)) and not all(isinstance(part, (int, float, str)) for part in value):
            parts = [visit(part) for part in value]
            made = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        elif is_dataclass(value) and not isinstance(value, type):
            changed = {field.name: visit(getattr(value, field.name)) for field in fields(value) if field.init}
            made = replace(value, **changed)
        else:
            return value
        known[id(value)] = made
        return made

    return visit(values)
