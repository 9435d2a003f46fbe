"""A copy of the run's tensors in memory, from which a save is written while the training changes the originals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64
"""Bytes at whose multiples each tensor begins."""


class Stager:
    """Copies tensors of the CPU, also sharded ones, into one buffer that is used again as long as shapes stay.

    `allocate` makes the buffer: so many bytes, uint8.
    """

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._layout: list[Any] = []
        self._views: list[Tensor] = []

    def stage(self, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The same parts with tensors of their own. The buffer belongs to the newest copy."""
        import torch

        tensors = [tensor.detach() for state in parts.values() for tensor in state.values()]
        own = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
        layout = [(tensor.shape, tensor.dtype) for tensor in own]
        if layout != self._layout:
            self._views, self._layout = self._divide(layout), layout
        torch._foreach_copy_(self._views, own)
        copies = iter([like(tensor, view) for tensor, view in zip(tensors, self._views)])
        return {part: {name: next(copies) for name in state} for part, state in parts.items()}

    def _divide(self, layout: list[Any]) -> list[Tensor]:
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in layout]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        buffer = self._allocate(max(starts[-1], ALIGNMENT))
        return [
            buffer[start : start + size].view(dtype).view(shape)
            for start, size, (shape, dtype) in zip(starts, sizes, layout)
        ]


class PinnedStager:
    """Copies tensors of a GPU, also sharded ones, into pinned main memory, by PyTorch's own stager.

    All copies are queued; `stage` returns when they have arrived.
    """

    def __init__(self) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        options = {"use_pinned_memory": True, "use_shared_memory": False, "use_async_staging": False}
        self._stager = DefaultStager(StagingOptions(**options, use_non_blocking_copy=True))

    def stage(self, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The same parts with tensors of their own. The buffers belong to the newest copy."""
        staged: Any = self._stager.stage({name: dict(state) for name, state in parts.items()})
        return dict(staged)


def private_memory(size: int) -> Tensor:
    """`size` bytes of this process."""
    import torch

    return torch.empty(size, dtype=torch.uint8)


def like(tensor: Any, copy: Tensor) -> Any:
    """`copy`, sharded as `tensor` is."""
    if not hasattr(tensor, "to_local"):
        return copy
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        copy, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
