"""Calibration of quantized weights: inputs that layers observe, and rounding by GPTQ.

GPTQ rounds weights column after column, and later columns compensate for the errors of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

BLOCK = 128
"""Number of columns whose errors are propagated together; it affects only the speed."""
DAMPING = 0.01
"""Hessian damping of GPTQ, as a fraction of the mean of the Hessian's diagonal (Frantar et al. 2022)."""


@dataclass(slots=True)
class InputStatistics:
    """Statistics of the inputs that layers received in forward passes, by module path of the layer."""

    largest: dict[str, Tensor] = field(default_factory=dict)
    """Largest absolute input, float32 []."""
    moments: dict[str, Tensor] = field(default_factory=dict)
    """Sum of x xᵀ over inputs x, float32 [in, in], on the layer's device."""


@contextmanager
def watch_inputs(
    network: nn.Module, layers: Iterable[str], moments_of: Collection[str] = ()
) -> Iterator[InputStatistics]:
    """Context manager: yields statistics of the inputs of `layers`, which each forward pass within the block updates.

    Args:
        network: The network.
        layers: Module paths of the layers.
        moments_of: Layers for which also the sum of x xᵀ over the inputs x is recorded, for GPTQ; (): none.
    """
    seen, modules = InputStatistics(), dict(network.named_modules())

    def watching(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            inputs = given[0].detach()
            top = inputs.abs().amax().float().cpu()
            seen.largest[name] = top if name not in seen.largest else top.maximum(seen.largest[name])
            if name in moments_of:
                rows = inputs.flatten(0, -2).float()
                total = rows.T @ rows
                seen.moments[name] = seen.moments[name].add_(total) if name in seen.moments else total

        return look

    handles = [modules[name].register_forward_pre_hook(watching(name)) for name in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def round_columns(
    weight: Tensor, moments: Tensor, nearest: Callable[[Tensor, int], Tensor], *, block: int = BLOCK
) -> Tensor:
    """Rounds a weight by GPTQ, so that the outputs of its layer for the inputs x seen in calibration change little.

    Args:
        weight: float32 [out, in].
        moments: Sum of x xᵀ over the inputs x, float32 [in, in].
        nearest: Rounds one column: called with the column [out] and its index, returns [out].
        block: Number of columns whose errors are propagated together.

    Returns:
        The rounded weight, float32 [out, in].

    Source:
        GPTQ: Frantar et al. 2022.
    """
    left, curve = weight.clone(), moments.clone()
    diagonal = curve.diagonal()
    unseen = diagonal == 0  # an input that is always zero contains no information on its weights
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
