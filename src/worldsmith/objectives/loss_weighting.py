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

    videos: int
    images: int
    micro_batches: int
    world_size: int = 1

    @property
    def samples(self) -> int:
        return self.videos + self.images


def exact_mean_weights(
    is_image: Sequence[bool], counts: StepCounts, *, loss_scale: float, image_loss_scale: float | None
) -> list[float]:
    """Weights under which the step's loss is the mean over all its samples, times `loss_scale`.

    With an `image_loss_scale`, videos and images are averaged apart and the two scaled means are added.
    """
    if image_loss_scale is None:
        weight = loss_scale * counts.world_size / needed(counts.samples, "samples", len(is_image))
        return [weight] * len(is_image)
    images = sum(is_image)
    video_weight = loss_scale * counts.world_size / needed(counts.videos, "videos", len(is_image) - images)
    image_weight = image_loss_scale * counts.world_size / needed(counts.images, "images", images)
    return [image_weight if image else video_weight for image in is_image]


def pack_mean_weights(
    is_image: Sequence[bool], counts: StepCounts, *, loss_scale: float, image_loss_scale: float | None
) -> list[float]:
    """Weights under which the step's loss is the mean of pack means; a sample in a small pack counts more."""
    image_scale = loss_scale if image_loss_scale is None else image_loss_scale
    share = 1.0 / (len(is_image) * counts.micro_batches)
    return [share * (image_scale if image else loss_scale) for image in is_image]


def loss_sums(losses: Tensor) -> Tensor:
    """(sum of losses, number of losses), float64 [2]: add over micro-batches and ranks; the ratio is the true mean."""
    return torch.stack([losses.detach().double().sum(), losses.new_tensor(len(losses), dtype=torch.float64)])


def needed(total: int, kind: str, here: int) -> int:
    """The divisor of a mean: the step's count, which cannot be less than this micro-batch's own."""
    if total < here:
        raise ValueError(f"the step is said to hold {total} {kind}, but this micro-batch alone has {here}")
    return max(total, 1)
