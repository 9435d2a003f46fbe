"""A copy of the run's tensors in host RAM, from which a save is written while training changes the originals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.dcp.dcp_folder import planner_of
from worldsmith.distributed.memory import pin, unpin
from worldsmith.models.local_part import local_part

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

ALIGNMENT = 64
"""Alignment of each tensor in bytes."""


@dataclass(frozen=True, eq=False)
class StagedLayout:
    """DCP save plans and offsets of all tensors in a staging buffer, a copy of this rank's tensors in host RAM.

    Layout and buffer together contain all tensors to save. The layout can be pickled and sent to another process.
    """

    plans: dict[str, SavePlan]
    """Part of the checkpoint, such as "model" -> DCP save plan of this rank."""
    starts: dict[str, dict[MetadataIndex, int]]
    """Part of the checkpoint -> DCP index of a tensor -> offset in bytes of the tensor in the buffer."""
    size: int
    """Size of the buffer in bytes."""

    def planners(self, buffer: Tensor) -> dict[str, SavePlanner]:
        """Returns DCP save planners that take the tensors from the staging buffer `buffer`.

        The keys are the parts of the checkpoint, such as "model". Each value is the argument `planner` of
        `dcp_folder.save_part`.
        """
        return {part: staged_planner(plan, partial(self.view, buffer, part)) for part, plan in self.plans.items()}

    def view(self, buffer: Tensor, part: str, item: WriteItem) -> Tensor:
        """Returns a tensor in the staging buffer, without a copy.

        The storage of the returned tensor covers only its own bytes of the buffer's memory, because DCP copies a tensor
        whose storage is larger than the tensor.

        Args:
            buffer: The staging buffer.
            part: Part of the checkpoint.
            item: Item of the part's save plan that stands for the tensor.
        """
        import torch

        shape, dtype = shape_and_dtype(item)
        start = self.starts[part][item.index]
        storage = buffer.untyped_storage()[start : start + shape.numel() * dtype.itemsize]
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


class Stager:
    """Copies tensors, also sharded ones, into one buffer in host RAM, which is reused while their shapes do not change.

    Args:
        allocate: Called with a number of bytes; returns a uint8 tensor of this size.
        on_cuda: Whether the tensors are on a GPU; the buffer is then page-locked.
    """

    def __init__(self, allocate: Callable[[int], Tensor], *, on_cuda: bool = False) -> None:
        self._allocate, self._on_cuda = allocate, on_cuda
        self._shapes: list[Any] = []
        self._views: list[Tensor] = []
        self._staged: tuple[StagedLayout, Tensor] | None = None
        self._pinned = False

    def stage(self, parts: Mapping[str, Mapping[str, Any]]) -> tuple[StagedLayout, Tensor]:
        """Copies this rank's tensors into the staging buffer, over the previous copy; returns (layout, buffer).

        If names, shapes, dtypes and sharding have not changed since the previous call, both are the same objects as
        those that it returned.

        Args:
            parts: Part of the checkpoint -> tensor name -> tensor or DTensor.
        """
        import torch

        tensors = [(part, name, tensor.detach()) for part, state in parts.items() for name, tensor in state.items()]
        shapes = [(part, name, tensor.shape, tensor.dtype, sharding(tensor)) for part, name, tensor in tensors]
        if self._staged is None or shapes != self._shapes:
            self._staged, self._shapes = self._prepare(parts), shapes
        own = [local_part(tensor) for _, _, tensor in tensors]
        torch._foreach_copy_(self._views, own, non_blocking=self._on_cuda)
        if self._on_cuda:
            torch.cuda.current_stream().synchronize()
        return self._staged

    def _prepare(self, parts: Mapping[str, Mapping[str, Any]]) -> tuple[StagedLayout, Tensor]:
        layout = lay_out(parts)
        if self._pinned and self._staged is not None:
            unpin(self._staged[1])
        self._staged, self._views = None, []  # frees the old buffer before the new one is allocated
        buffer = self._allocate(layout.size)
        self._pinned = self._on_cuda and pin(buffer)
        self._views = [layout.view(buffer, part, item) for part, plan in layout.plans.items() for item in plan.items]
        return layout, buffer


def lay_out(parts: Mapping[str, Mapping[str, Any]]) -> StagedLayout:
    """Returns the layout of a staging buffer that holds this rank's tensors one after the other.

    Args:
        parts: Part of the checkpoint -> tensor name -> tensor or DTensor.
    """
    plans = {part: planner_of(state).create_local_plan() for part, state in parts.items()}
    starts: dict[str, dict[MetadataIndex, int]] = {part: {} for part in plans}
    end = 0
    for part, plan in plans.items():
        for item, name in zip(plan.items, parts[part], strict=True):
            assert item.index.fqn == name
            starts[part][item.index] = end
            shape, dtype = shape_and_dtype(item)
            end += -(-shape.numel() * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return StagedLayout(plans, starts, max(end, ALIGNMENT))


def shape_and_dtype(item: WriteItem) -> tuple[torch.Size, torch.dtype]:
    """Returns shape and dtype of this rank's shard of the tensor that the DCP write item `item` stands for."""
    assert item.tensor_data is not None
    return item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype


def staged_planner(plan: SavePlan, find: Callable[[WriteItem], Tensor]) -> SavePlanner:
    """Returns a DCP save planner that uses `plan` as its local plan; `find(item)` returns a write item's tensor."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class StagedPlanner(DefaultSavePlanner):
        def create_local_plan(self) -> SavePlan:
            return plan

        def resolve_data(self, write_item: WriteItem) -> Tensor:
            return find(write_item)

    return StagedPlanner()


def sharding(tensor: Any) -> Any:
    """Returns (device mesh, placements) of a DTensor; None for a plain tensor."""
    return (tensor.device_mesh, tensor.placements) if hasattr(tensor, "to_local") else None


def allocate_private(size: int) -> Tensor:
    """Allocates a uint8 tensor of `size` bytes in this process, not shared with other processes."""
    import torch

    return torch.empty(size, dtype=torch.uint8)
