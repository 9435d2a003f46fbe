"""GPTQ: weights are rounded column after column, and the later ones make up for the errors of the earlier ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 128
"""Columns whose errors are passed on to all later ones at once: it is faster, and changes nothing."""
DAMPING = 0.01
"""Of the mean of the diagonal, added to it (Frantar et al. 2022)."""


def round_columns(
    weight: Tensor, moments: Tensor, nearest: Callable[[Tensor, int], Tensor], *, block: int = BLOCK
) -> Tensor:
    """float32 [out, in]: rounded so that the outputs for the observed inputs x change little (Frantar et al. 2022).

    Args:
        weight: float32 [out, in].
        moments: float32 [in, in], the sum of x xᵀ.
        nearest: column [out] and its index → the same, rounded.
    """
    left, curve = weight.clone(), moments.clone()
    diagonal = curve.diagonal()
    unseen = diagonal == 0  # an input that is always zero says nothing of its weights
    left[:, unseen] = 0
    diagonal[unseen] = 1
    diagonal += DAMPING * diagonal.mean()
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(curve)), upper=True)
    for start in range(0, weight.shape[1], block):
        end = min(start + block, weight.shape[1])
        errors = torch.zeros_like(left[:, start:end])
        for column in range(start, end):
            rounded = nearest(left[:, column], column)
            error = (left[:, column] - rounded) / factor[column, column]
            left[:, column:end] -= error[:, None] * factor[column, column:end]
            left[:, column] = rounded
            errors[:, column - start] = error
        left[:, end:] -= errors @ factor[start:end, end:]
    return left
