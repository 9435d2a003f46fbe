"""`NoiseObjective`: adds noise to latents, and computes losses from the network's outputs for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.objectives.objective import BatchLoss, Objective

if TYPE_CHECKING:
    from torch import Tensor

NOISE_BINS = 10


@dataclass(frozen=True, slots=True)
class Draws:
    """Noise of the n samples of a batch, and tensors that follow from their noise levels.

    Objectives extend it. `draw` returns it on the CPU; its tensors are moved to the device of the latents before the
    other methods of an objective use it, all at once.
    """

    noise: list[Tensor]
    """Noise of each sample, float32 in the shape of its latents."""
    timesteps: Tensor
    """Input of the network for the noise level of each sample, [n]."""
    bins: list[int]
    """Index of the noise level range of each sample, 0 to 9, for the metric "loss_by_noise"."""
    bin_rows: Tensor
    """`bins` as int64 [n]."""

    def __len__(self) -> int:
        return len(self.noise)


class NoiseObjective(Objective):
    """Base class of diffusion objectives, which train a network on noisy latents.

    - Call order: `draw` samples the noise, `inputs` returns the network's inputs, the caller runs the network, `losses`
      compares its outputs with the targets, and `add_up` sums the losses of the batch.
    - Samples have a `position` in the data stream and further attributes that an objective needs.
    - `latents` are clean, one tensor [C, t, h, w] per sample.
    - Random values are a pure function of the seed and the sample's position.
    """

    within: tuple[float, float] = (0.0, 1.0)
    """Range [low, high) of sampled noise levels, where 0 is no noise and 1 pure noise; high = 1 is included."""

    class Config(Objective.Config):
        def check_tier(self, tier: str) -> None:
            """Raises ValueError if the config has no settings for the resolution bucket `tier`, such as "480"."""

    @abstractmethod
    def draw(self, samples: Sequence[Any], shapes: Sequence[Sequence[int]], *, seed: int) -> Any:
        """Samples a noise level and noise for each sample of a batch, on the CPU.

        Args:
            samples: Samples of the batch.
            shapes: Shape (C, t, h, w) of the clean latents of each sample.
            seed: Seed of the run.

        Returns:
            The `Draws` of the batch, to be moved to the latents' device and passed to `inputs`, `losses` and `add_up`.
        """

    @abstractmethod
    def inputs(self, latents: Sequence[Tensor], draws: Any) -> tuple[list[Tensor], Tensor]:
        """Returns the inputs of the network: noisy latents of each sample, float32 [C, t, h, w], and timesteps [n].

        Args:
            latents: Clean latents of each sample, [C, t, h, w].
            draws: Noise levels and noise from `draw`.
        """

    @abstractmethod
    def losses(self, answers: Sequence[Tensor], latents: Sequence[Tensor], draws: Any) -> Tensor:
        """Returns the loss of each sample, float32 [n].

        Args:
            answers: Outputs of the network for the tensors from `inputs`, one per sample.
            latents: Clean latents of each sample, [C, t, h, w].
            draws: Noise levels and noise from `draw`.
        """

    def weigh(self, samples: Sequence[Any]) -> float:
        """Returns the weight of a batch in the mean loss of its training step; by default its number of samples."""
        return len(samples)

    @abstractmethod
    def add_up(self, losses: Tensor, draws: Any, *, tokens: int) -> BatchLoss:
        """Returns the weighted sum of a batch's losses, with metrics to log.

        Args:
            losses: Loss of each sample [n], from the method `losses`.
            draws: Noise levels and noise from `draw`.
            tokens: Number of tokens of the batch.
        """


def stack_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Stacks n tensors of equal shape to one tensor [n, …]; an argument that is one tensor is returned unchanged."""
    import torch

    return tensors if isinstance(tensors, torch.Tensor) else torch.stack(list(tensors))


def sum_by_noise(losses: Tensor, draws: Draws) -> dict[str, tuple[Tensor, float]]:
    """Sums the losses of samples with similar noise levels, in ten equal ranges from 0 to 1.

    Args:
        losses: Loss of each sample [n].
        draws: The range that each sample's noise level is in.

    Returns:
        Metric name -> (sum of the losses, number of samples); the name ends with the start of the range, such as
        `loss_by_noise[0.3]`.
    """
    sums = losses.new_zeros(NOISE_BINS).index_add(0, draws.bin_rows, losses)
    return {
        f"loss_by_noise[{place / NOISE_BINS:.1f}]": (total, float(draws.bins.count(place)))
        for place, total in enumerate(sums.unbind())
    }
