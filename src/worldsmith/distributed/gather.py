"""Tensors of the processes of a group, on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


def gather_tensors(tensor: Tensor, group: ProcessGroup) -> list[Tensor]:
    """Those of all ranks of the group, of the same shape and type, in rank order."""
    import torch
    import torch.distributed as dist

    tensors = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(tensors, tensor.contiguous(), group=group)
    return tensors
