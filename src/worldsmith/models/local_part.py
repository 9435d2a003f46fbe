"""The shard of a tensor on this rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def local_part(tensor: Any) -> Tensor:
    """Returns the local shard of a DTensor (same memory, no autograd graph); any other tensor unchanged.

    No PyTorch operator is called, because a simulation (`worldsmith plan`) would count it.
    """
    from torch.distributed.tensor import DTensor

    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
