"""Indices and masks keep their values in a simulation, as long as they come from values: sizes depend on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from worldsmith.models.real_values import real_values

KINDS = {torch.int64, torch.int32, torch.bool}
LONGEST_TABLE = 4096
aten = torch.ops.aten
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations that take masks as indices."""


def has_values(tensor: Tensor) -> bool:
    """Whether it is such a tensor, or a table of one dimension, as schedules are."""
    if type(tensor) is not Tensor or tensor.device.type == "meta":
        return False
    return tensor.dtype in KINDS or (tensor.ndim < 2 and tensor.numel() <= LONGEST_TABLE)


def with_places(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments of an operation by index, with places for masks that have values."""
    indices: list[Tensor | None] = []
    with real_values():
        for index in args[1]:
            is_mask = index is not None and index.dtype is torch.bool and has_values(index)
            indices += index.nonzero(as_tuple=True) if is_mask else [index]
    return (args[0], indices, *args[2:])
