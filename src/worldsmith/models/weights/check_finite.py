"""Checks that loaded weights are finite, and names the tensors that contain NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.models.real_values import in_simulation

if TYPE_CHECKING:
    from torch import Tensor

LISTED = 3
"""Max number of tensor names in an error message."""


def non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of the tensors that contain NaN or infinity; for a DTensor only this rank's shard is checked.

    Integers, 8-bit floats and tensors without values (meta, fake) are skipped. Min and max are computed in one pass
    over the memory, without allocating a copy: they are NaN or infinite exactly if an element is.
    """
    return [] if in_simulation() else [name for name, tensor in tensors.items() if not is_finite(tensor)]


def is_finite(tensor: Tensor) -> bool:
    """Returns whether a tensor contains neither NaN nor infinity; True for tensors that are not checked.

    Not checked are integers, 8-bit floats, and tensors on the meta device. Of a DTensor this rank's shard is checked.
    """
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if local.is_meta or not local.numel() or not local.is_floating_point() or local.dtype.itemsize < 2:
        return True
    low, high = local.detach().aminmax()
    return bool(low.isfinite() & high.isfinite())


def require_finite(source: str, names: Sequence[str]) -> None:
    """Raises UserError if `names`, the result of `non_finite` for the weights of `source`, is not empty."""
    if names:
        listed = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        count = "1 tensor contains" if len(names) == 1 else f"{len(names)} tensors contain"
        raise UserError(
            f"{source}: {count} values that are not finite (NaN or infinity): {listed}. Expected finite weights; use "
            "another checkpoint, or copy or export this one again"
        )
