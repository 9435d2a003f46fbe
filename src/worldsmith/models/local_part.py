"""The shard of a tensor on this rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def local_part(tensor: Any) -> Tensor:
    """Returns the local shard of a DTensor (same memory, no autograd graph); any other tensor unchanged.

    No operation is dispatched, so that the simulation of a plan does not count one.
    """
    from torch.distributed.tensor import DTensor

    local: Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local
