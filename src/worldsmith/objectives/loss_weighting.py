"""What each sample's loss weighs in one optimizer step that is spread over micro-batches and ranks.

Gradients are summed over the micro-batches of a step and averaged over ranks (DDP, FSDP). The weights undo that where
needed, so that the step's gradient does not depend on how its samples were cut into packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What one optimizer step holds over all its micro-batches and all ranks."""

    samples: int
    micro_batches: int
    world_size: int = 1


def exact_mean_weights(scales: Sequence[float], counts: StepCounts) -> list[float]:
    """Weights of a micro-batch's samples under which the step's loss is the mean over all its scaled samples."""
    if counts.samples < len(scales):
        raise ValueError(
            f"the step is said to hold {counts.samples} samples, but this micro-batch alone has {len(scales)}"
        )
    return [scale * counts.world_size / counts.samples for scale in scales]


def pack_mean_weights(scales: Sequence[float], counts: StepCounts) -> list[float]:
    """Weights under which the step's loss is the mean of pack means; a sample in a small pack counts more."""
    return [scale / (len(scales) * counts.micro_batches) for scale in scales]


def loss_sums(losses: Tensor) -> Tensor:
    """(sum of losses, number of losses), float64 [2]: add over micro-batches and ranks; the ratio is the true mean."""
    return torch.stack([losses.detach().double().sum(), losses.new_tensor(len(losses), dtype=torch.float64)])
