"""Gradient clipping by one global norm, and the decision to skip a step that is not finite.

What happens to a step, in this order:

- The loss is NaN or infinite: the step is skipped. So is one whose gradients overflow float16.
- The gradient norm is not finite and `force_finite` is on: NaN and infinite entries are set to zero and the norm is
  measured again. If it is now finite and not zero, the step is taken with the entries that are left.
- The gradient norm is (still) not finite, or nothing was left of the gradient: the step is skipped.

A skipped step is really skipped: no optimizer, scheduler or EMA step, so no weight, moment or schedule moves. Skips are
counted, and a run of too many in a row stops the training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldsmith.models.local_part import local_part

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GradNorm:
    """The global L2 norm of the gradients before clipping."""

    norm: float
    finite: bool
    """Whether the gradients may be used. The same on every rank, since the norm is."""
    zeroed: int = 0
    """How many non-finite entries were set to zero on this rank."""


def clip_gradients(
    parameters: Iterable[nn.Parameter], clip_norm: float | None, *, force_finite: bool = False
) -> GradNorm:
    """Scales all gradients by min(1, clip_norm / (norm + 1e-6)); with `clip_norm` None only measures.

    Sharded gradients (DTensor) are measured over all shards. Gradients that are not finite are left unscaled.
    """
    import torch

    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, found {clip_norm}; leave it out to clip nothing")
    with_gradient = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in with_gradient if p.grad is not None]
    total = global_norm(gradients)
    norm, zeroed = float(total), 0
    repaired = force_finite and not math.isfinite(norm)
    if repaired:
        zeroed = zero_nonfinite(gradients)
        total = global_norm(gradients)
        norm = float(total)
    usable = math.isfinite(norm) and not (repaired and norm == 0.0)
    if usable and clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(with_gradient, clip_norm, total)
    return GradNorm(norm=norm, finite=usable, zeroed=zeroed)


class StepGuard:
    """Decides for each step whether it must be skipped, counts the skips, and stops after too many in a row.

    `max_consecutive`: so many skipped steps in a row are borne; the next one raises FloatingPointError.
    """

    def __init__(self, *, max_consecutive: int = 100) -> None:
        if max_consecutive < 0:
            raise ValueError(f"max_consecutive must not be negative, found {max_consecutive}")
        self.max_consecutive = max_consecutive
        self.skipped = 0
        self.consecutive = 0

    def must_skip(self, step: int, loss: float, gradient: GradNorm, *, weight: float = 1.0, cause: str = "") -> bool:
        """Whether the optimizer, scheduler and EMA must not step. `loss` is the step's mean over all ranks.

        A step without `weight` has no loss: none of its samples has anything to learn from. `cause`: why it must be
        skipped in any case.
        """
        if weight and math.isfinite(loss) and gradient.finite and not cause:
            self.consecutive = 0
            if gradient.zeroed:
                logger.warning("step %d: %d non-finite gradient entries were set to zero", step, gradient.zeroed)
            return False
        self.skipped += 1
        self.consecutive += 1
        found = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {gradient.norm}"
        cause = cause or found
        if not weight:
            cause = "there is nothing to learn in its batches"
        elif gradient.zeroed:
            cause += f" after {gradient.zeroed} non-finite entries were set to zero"
        if self.consecutive > self.max_consecutive:
            raise FloatingPointError(
                f"step {step}: {cause}; that is {self.consecutive} unusable steps in a row, and "
                f"{self.max_consecutive} are borne; lower optimizer.lr, look at the last samples, or train in float32"
            )
        logger.warning("step %d is skipped: %s (%d skipped so far)", step, cause, self.skipped)
        return True

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped, "consecutive": self.consecutive}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skipped = int(state["skipped"])
        self.consecutive = int(state["consecutive"])


def global_norm(gradients: list[Tensor]) -> Tensor:
    """The L2 norm over all gradients as a plain tensor, summed over shards where they are sharded."""
    import torch
    from torch.distributed.tensor import DTensor

    total = torch.nn.utils.get_total_norm(gradients)
    return total.full_tensor() if isinstance(total, DTensor) else total


def zero_nonfinite(gradients: list[Tensor]) -> int:
    """Sets NaN and infinite entries to zero in place and returns how many there were on this rank."""
    import torch

    zeroed = 0
    for gradient in gradients:
        local = local_part(gradient)
        zeroed += local.numel() - int(torch.isfinite(local).sum())
        local.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return zeroed
