"""`GradClip`: gradient clipping by the global norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from worldsmith.config.declare.ranges import Range
from worldsmith.models.local_part import local_part
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from torch import Tensor, nn

    from worldsmith.training.step import GradNorm, StepResult


class GradClip(Callback):
    """Clips the gradients of all trained parameters to a max global L2 norm."""

    class Config(Callback.Config):
        clip_norm: Annotated[float, Range(gt=0)] = 1.0
        """Max global L2 norm of the gradient; larger gradients are scaled down to it."""
        force_finite: bool = True
        """Whether NaN and infinite gradient entries become zero. False: such a step is skipped, as with float16."""

    config: Config

    def on_before_optimizer_step(self, trainer: TrainingRun, step: StepResult) -> GradNorm:
        repair = self.config.force_finite and not step.overflowed
        parameters, known = trainer.state.parameters, step.known_norm
        return clip_gradients(parameters, self.config.clip_norm, force_finite=repair, known_norm=known)


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    clip_norm: float | None,
    *,
    force_finite: bool = False,
    known_norm: tuple[Tensor, float] | None = None,
) -> GradNorm:
    """Scales all gradients by min(1, clip_norm / (norm + 1e-6)), in place. Collective if they are sharded.

    The norm of sharded gradients (DTensor) is that over all shards. Gradients that are not finite are not scaled.

    Args:
        parameters: Trained parameters; those without a gradient are ignored.
        clip_norm: Max global L2 norm; None: the gradients are only measured.
        force_finite: If the norm is not finite, set NaN and infinite entries to zero and measure again.
        known_norm: Global L2 norm before scaling, as (0-d tensor on the device, float); None: it is computed.

    Returns:
        Global L2 norm before scaling, whether the gradients can be used, and the number of entries set to zero.

    Raises:
        ValueError: If `clip_norm` is not positive.
    """
    import torch

    from worldsmith.training.step import GradNorm, global_norm

    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, found {clip_norm}; omit it to disable clipping")
    with_gradient = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in with_gradient if p.grad is not None]
    total = global_norm(gradients) if known_norm is None else known_norm[0]
    norm, zeroed = float(total) if known_norm is None else known_norm[1], 0
    repaired = force_finite and not math.isfinite(norm)
    if repaired:
        zeroed = zero_nonfinite(gradients)
        total = global_norm(gradients)
        norm = float(total)
    usable = math.isfinite(norm) and not (repaired and norm == 0.0)
    if usable and clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(with_gradient, clip_norm, total)
    return GradNorm(norm=norm, finite=usable, zeroed=zeroed)


def zero_nonfinite(gradients: list[Tensor]) -> int:
    """Sets NaN and infinite entries to zero, in place, and returns their number on this rank."""
    import torch

    zeroed = 0
    for gradient in gradients:
        local = local_part(gradient)
        zeroed += local.numel() - int(torch.isfinite(local).sum())
        local.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return zeroed
