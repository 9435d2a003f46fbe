"""Checksum of a weight's bits that does not depend on its sharding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.models.local_part import local_part

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 22
"""Number of elements that are converted and summed at a time, to limit memory."""


@dataclass(frozen=True, slots=True)
class WeightSum:
    """Shape and checksum (`bit_sum`) of a float32 weight whose original values are not stored any more."""

    shape: list[int]
    bits: int

    @classmethod
    def of(cls, tensor: Tensor) -> WeightSum:
        """Computes shape and checksum of `tensor`; all ranks of a sharded tensor (DTensor) must call it."""
        return cls(list(tensor.shape), bit_sum(tensor))


def bit_sum(tensor: Tensor) -> int:
    """Computes a checksum of a tensor's float32 bits; all ranks of a sharded tensor (DTensor) must call it.

    Each element's bit pattern is multiplied by a number computed from its bits; products are added modulo 2^64.

    Returns:
        A signed 64-bit integer, the same on all ranks and for any sharding.
    """
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
