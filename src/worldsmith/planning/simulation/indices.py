"""Indices and masks keep their values in a simulation, as long as they come from values: sizes depend on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from worldsmith.models.real_values import real_values

KINDS = {torch.int64, torch.int32, torch.bool}
LONGEST_TABLE = 4096
aten = torch.ops.aten
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations that take masks as indices."""


def is_index_work(args: Any, kwargs: Any) -> bool:
    """Whether an operation is given indices and masks with values, and no other tensors."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    return bool(tensors) and all(map(has_values, tensors))


def has_values(tensor: Tensor) -> bool:
    """Whether it is such a tensor, or a table of one dimension, as schedules are."""
    is_table = tensor.ndim < 2 and tensor.numel() <= LONGEST_TABLE
    return type(tensor) is Tensor and (tensor.dtype in KINDS or is_table) and tensor.device.type != "meta"


def with_places(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments of an operation by index, with places for masks that have values."""
    indices: list[Tensor | None] = []
    with real_values():
        for index in args[1]:
            is_mask = index is not None and index.dtype is torch.bool and has_values(index)
            indices += index.nonzero(as_tuple=True) if is_mask else [index]
    return (args[0], indices, *args[2:])
