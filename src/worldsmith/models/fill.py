"""Giving parameters, which may be sharded, whole values that depend on a seed and their names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Parameter = TypeVar("Parameter")


def chosen(parameters: Mapping[str, Parameter], names: Collection[str] | None) -> dict[str, Parameter]:
    """Those with these names (None: all), in the order of the network. Raises ValueError for an unknown name."""
    unknown = sorted(set(names or ()) - parameters.keys())
    if unknown:
        raise ValueError(f"the network has no parameter {unknown[0]} ({len(unknown)} unknown names)")
    return {name: parameter for name, parameter in parameters.items() if names is None or name in names}


def seed_of(seed: int, name: str) -> int:
    """The seed of one parameter's values."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


def fill(parameter: Tensor, value: Tensor) -> None:
    """Copies a whole value into a parameter, or this rank's shard of it into a sharded one; nothing is sent."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        own = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(own.to_local())
    else:
        parameter.copy_(value)
