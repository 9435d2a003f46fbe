"""A fingerprint of a weight's bits, the same for any sharding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.models.local_part import local_part

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 22
"""Number of entries that are summed at once."""


@dataclass(frozen=True, slots=True)
class WeightSum:
    """Shape and `bit_sum` of a weight, float32, that is no longer there as it was."""

    shape: list[int]
    bits: int

    @classmethod
    def of(cls, tensor: Tensor) -> WeightSum:
        return cls(list(tensor.shape), bit_sum(tensor))


def bit_sum(tensor: Tensor) -> int:
    """Returns the float32 bit patterns of all entries, each multiplied by a number of its own bits, added modulo
    2^64."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate

    local = local_part(tensor)
    total = torch.zeros((), dtype=torch.int64, device=local.device)
    for piece in local.detach().reshape(-1).split(CHUNK):
        bits = piece.float().view(torch.int32).to(torch.int64)
        total += (bits * (bits ^ 0x5BD1E995)).sum()
    if isinstance(tensor, DTensor):
        parts = [Partial() if placement.is_shard() else Replicate() for placement in tensor.placements]
        total = DTensor.from_local(total, tensor.device_mesh, parts, run_check=False).full_tensor()
    return int(total)
