"""GPTQ against the least-squares problem that it solves, and against rounding to the nearest number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from worldsmith.families.vision_language.weights.calibration import DAMPING, round_columns

SCALE = 0.3


def nearest(column: Tensor, index: int = 0) -> Tensor:
    return (column / SCALE).round().clamp(-8, 7) * SCALE


def inputs(count: int = 200, width: int = 12) -> Tensor:
    """Correlated ones, float64 [count, width]."""
    stream = torch.Generator().manual_seed(4)
    mix = torch.randn(width, width, generator=stream, dtype=torch.float64)
    return torch.randn(count, width, generator=stream, dtype=torch.float64) @ mix


def weights() -> Tensor:
    return torch.randn(6, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def solved_anew(weight: Tensor, moments: Tensor) -> Tensor:
    """Column after column; all later ones become each time what fits the first weights' outputs best, by least
    squares."""
    curve = moments + DAMPING * moments.diagonal().mean() * torch.eye(len(moments), dtype=moments.dtype)
    rounded = weight.clone()
    for column in range(weight.shape[1]):
        if column:
            done = rounded[:, :column] - weight[:, :column]
            later = -torch.linalg.solve(curve[column:, column:], curve[column:, :column] @ done.T).T
            rounded[:, column] = weight[:, column] + later[:, 0]
        rounded[:, column] = nearest(rounded[:, column])
    return rounded


@pytest.mark.parametrize("block", [1, 5, 128])
def test_later_columns_are_the_least_squares_solution(block: int) -> None:
    seen = inputs()
    moments = seen.T @ seen
    found = round_columns(weights(), moments, nearest, block=block)
    assert torch.allclose(found, solved_anew(weights(), moments))
    assert not torch.allclose(found, nearest(weights()))

    def error(rounded: Tensor) -> float:
        return float((seen @ (rounded - weights()).T).norm())

    assert error(found) < 0.9 * error(nearest(weights()))


def test_inputs_without_correlation_change_nothing() -> None:
    assert torch.equal(round_columns(weights(), torch.eye(12, dtype=torch.float64), nearest), nearest(weights()))


def test_an_input_that_is_always_zero_gets_no_weight() -> None:
    seen = inputs()
    seen[:, 3] = 0
    found = round_columns(weights(), seen.T @ seen, nearest)
    assert not found[:, 3].any()
    kept = [column for column in range(12) if column != 3]
    assert torch.isfinite(found[:, kept]).all()
    assert found[:, kept].any(dim=0).all()
