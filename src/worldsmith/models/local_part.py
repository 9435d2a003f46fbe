"""The part of a tensor that this process holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def local_part(tensor: Any) -> Tensor:
    """Returns the local shard of a DTensor, which shares its memory and is part of no graph; any other tensor as it is.

    It is found by no operation, which the simulation of a plan would note as one of the run's.
    """
    from torch.distributed.tensor import DTensor

    local: Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local
