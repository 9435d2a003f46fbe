"""The part of a tensor that this process holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def local_part(tensor: Any) -> Tensor:
    """The local part of a DTensor, which shares its memory; any other tensor as it is."""
    from torch.distributed.tensor import DTensor

    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local
