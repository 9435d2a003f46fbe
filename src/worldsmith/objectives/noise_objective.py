"""`NoiseObjective`: what makes latents noisy for a network, and losses out of what it answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from worldsmith.objectives.objective import LossSum, Objective

if TYPE_CHECKING:
    from torch import Tensor

NOISE_BINS = 10


class NoiseObjective(Objective):
    """Training objective on noisy latents. Call order: `draw`, `inputs`, (the network,) `losses`, `add_up`.

    `samples` have a `position` in the data stream and further attributes that an objective needs. `latents` are clean,
    one tensor [C, t, h, w] per sample. Random values are a pure function of seed and position.
    """

    within: tuple[float, float] = (0.0, 1.0)
    """Range of sampled noise levels, 0 (none) to 1: at least the first, and below the second unless that is 1."""

    class Config(Objective.Config):
        def check_tier(self, tier: str) -> None:
            """Raises ValueError when clips of this resolution tier cannot be made noisy."""

    @abstractmethod
    def draw(self, samples: Sequence[Any], latents: Sequence[Tensor], *, seed: int) -> list[Any]:
        """Samples noise level and noise of each sample; the noise is float32, on the latents' device."""

    @abstractmethod
    def inputs(
        self, samples: Sequence[Any], latents: Sequence[Tensor], draws: Sequence[Any]
    ) -> tuple[list[Tensor], Tensor]:
        """Returns the noisy latents of each sample, float32, and the network's timesteps [n]."""

    @abstractmethod
    def losses(
        self, answers: Sequence[Tensor], samples: Sequence[Any], latents: Sequence[Tensor], draws: Sequence[Any]
    ) -> Tensor:
        """Returns the loss of each sample, float32 [n], for the network outputs `answers`."""

    def weigh(self, samples: Sequence[Any]) -> float:
        """Returns the weight of a batch in its step."""
        return len(samples)

    @abstractmethod
    def add_up(self, losses: Tensor, samples: Sequence[Any], draws: Sequence[Any], *, tokens: int) -> LossSum:
        """Returns the batch's part of the step's loss."""


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stacks tensors of equal shape to [n, …]."""
    import torch

    return tensors if isinstance(tensors, torch.Tensor) else torch.stack(list(tensors))


def sum_by_noise(losses: Tensor, bins: Sequence[int]) -> dict[str, tuple[Tensor, float]]:
    """Returns sum and count of the losses per tenth of the noise levels: 0.0 is the range from 0.0 to 0.1."""
    import torch

    sums = losses.new_zeros(NOISE_BINS).index_add(0, torch.tensor(bins, device=losses.device), losses)
    return {
        f"loss_by_noise[{place / NOISE_BINS:.1f}]": (total, float(bins.count(place)))
        for place, total in enumerate(sums.unbind())
    }
