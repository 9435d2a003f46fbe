"""`NoiseObjective`: adds noise to latents, and computes losses from the network's outputs for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from worldsmith.objectives.objective import LossSum, Objective

if TYPE_CHECKING:
    from torch import Tensor

NOISE_BINS = 10


class NoiseObjective(Objective):
    """Base class of objectives on noisy latents. Call order: `draw`, `inputs`, (the network,) `losses`, `add_up`.

    - Samples have a `position` in the data stream and further attributes that an objective needs.
    - `latents` are clean, one tensor [C, t, h, w] per sample.
    - Random values are a pure function of the seed and the sample's position.
    """

    within: tuple[float, float] = (0.0, 1.0)
    """Range of sampled noise levels, 0 (none) to 1: at least the first, and below the second unless that is 1."""

    class Config(Objective.Config):
        def check_tier(self, tier: str) -> None:
            """Raises ValueError if the objective has no noise level for clips of the resolution bucket `tier`."""

    @abstractmethod
    def draw(self, samples: Sequence[Any], latents: Sequence[Tensor], *, seed: int) -> list[Any]:
        """Samples noise level and noise of each sample; the noise is float32, on the latents' device.

        Args:
            samples: Samples of the batch.
            latents: Clean latents of each sample.
            seed: Seed of the run.

        Returns:
            One object per sample, for `inputs`, `losses` and `add_up` of the same objective.
        """

    @abstractmethod
    def inputs(
        self, samples: Sequence[Any], latents: Sequence[Tensor], draws: Sequence[Any]
    ) -> tuple[list[Tensor], Tensor]:
        """Returns the inputs of the network: noisy latents of each sample, float32, and timesteps [n].

        Args:
            samples: Samples of the batch.
            latents: Clean latents of each sample.
            draws: Result of `draw`.
        """

    @abstractmethod
    def losses(
        self, answers: Sequence[Tensor], samples: Sequence[Any], latents: Sequence[Tensor], draws: Sequence[Any]
    ) -> Tensor:
        """Returns the loss of each sample, float32 [n].

        Args:
            answers: Network outputs for the `inputs`, one per sample.
            samples: Samples of the batch.
            latents: Clean latents of each sample.
            draws: Result of `draw`.
        """

    def weigh(self, samples: Sequence[Any]) -> float:
        """Returns the weight of a batch in its step; here its number of samples."""
        return len(samples)

    @abstractmethod
    def add_up(self, losses: Tensor, samples: Sequence[Any], draws: Sequence[Any], *, tokens: int) -> LossSum:
        """Returns the contribution of the batch to the loss of the step, with metrics to log.

        Args:
            losses: Loss of each sample [n], from `losses`.
            samples: Samples of the batch.
            draws: Result of `draw`.
            tokens: Number of tokens of the batch.
        """


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stacks tensors of equal shape to [n, …]; a tensor is returned unchanged."""
    import torch

    return tensors if isinstance(tensors, torch.Tensor) else torch.stack(list(tensors))


def sum_by_noise(losses: Tensor, bins: Sequence[int]) -> dict[str, tuple[Tensor, float]]:
    """Returns (sum, count) of the losses per tenth of the noise levels; key 0.0 is the range from 0.0 to 0.1.

    Args:
        losses: Loss of each sample [n].
        bins: Index of each sample's tenth, 0 to 9.
    """
    import torch

    sums = losses.new_zeros(NOISE_BINS).index_add(0, torch.tensor(bins, device=losses.device), losses)
    return {
        f"loss_by_noise[{place / NOISE_BINS:.1f}]": (total, float(bins.count(place)))
        for place, total in enumerate(sums.unbind())
    }
