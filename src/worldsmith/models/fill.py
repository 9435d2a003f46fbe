"""Putting a whole value into a parameter that may be sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def fill(parameter: Tensor, value: Tensor) -> None:
    """Copies a whole value into a parameter, or this rank's shard of it into a sharded one; nothing is sent."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        own = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(own.to_local())
    else:
        parameter.copy_(value)
