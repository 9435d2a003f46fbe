"""v-prediction: the network predicts v = √ᾱ·n - √(1-ᾱ)·x0 at x_t = √ᾱ·x0 + √(1-ᾱ)·n, for a discrete noise schedule.

The error of v is -1 / √(1-ᾱ) times the error of x0, so the squared error of v is that of x0 with the weight 1 / (1-ᾱ).
All weights in this module refer to the error of x0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Factor, PositiveFactor, Range
from worldsmith.objectives.noise_objective import NOISE_BINS, Draws, NoiseObjective, stack_tensors, sum_by_noise
from worldsmith.objectives.objective import BatchLoss

if TYPE_CHECKING:
    from torch import Tensor

# Random streams; 1 is that of the noise, 2 that of the posterior of latents.
TIMESTEP_STREAM, OFFSET_STREAM, STRATUM_STREAM = 0, 3, 4
Beta = Annotated[float, Range(gt=0, lt=1)]


class PositionedSample(Protocol):
    """Attributes of a training sample that `VPrediction` uses."""

    position: int


@dataclass(frozen=True, slots=True)
class TimestepDraws(Draws):
    """Timesteps (0 = least noise) and noise of a batch, with the noise schedule at these timesteps."""

    signal: Tensor
    """√ᾱ of each sample, float32 [n]."""
    spread: Tensor
    """√(1-ᾱ) of each sample, float32 [n]."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """Returns `signal` and `spread` as [n, 1, 1, 1, 1], to be multiplied with latents [n, C, t, h, w]."""
        return self.signal[:, None, None, None, None], self.spread[:, None, None, None, None]


class VPrediction(NoiseObjective):
    """v-prediction objective of diffusion models with a discrete noise schedule, such as CogVideoX.

    Random values depend only on the seed of the run and on the sample's position in the data stream.
    """

    class Config(NoiseObjective.Config):
        num_timesteps: Count = 1000
        """Number of steps of the noise schedule."""
        beta_start: Beta = 0.00085
        """Noise variance (beta) of the first step; its square root increases linearly to the last step."""
        beta_end: Beta = 0.012
        """Noise variance (beta) of the last step, before shift_scale and zero_terminal_snr are applied."""
        shift_scale: PositiveFactor = 1.0
        """Divisor of the signal-to-noise ratios of the noise schedule: 3 for CogVideoX-2B, 1 for the other models."""
        zero_terminal_snr: bool = True
        """Whether the noise schedule is rescaled so that its last step is pure noise (zero terminal SNR)."""
        offset_noise: Factor = 0.0
        """Noise offset: weight of one additional random number that is added to all elements of a sample's noise."""
        timestep_strata: Count = 1
        """Number of strata N of stratified timestep sampling: N consecutive samples of the data stream, over all ranks,
        get timesteps from N different equal parts of the noise schedule; 1: no strata."""
        loss_type: Literal["l2", "l1"] = "l2"
        """Type of the loss: weighted mean squared error (l2) or weighted mean absolute error (l1)."""
        max_weight: PositiveFactor | None = None
        """Max weight of the x0 error, which is 1 / (1-ᾱ) = SNR + 1 (min-SNR weighting); None: no limit."""

        def check(self) -> None:
            if self.beta_end <= self.beta_start:
                raise wrong(self, "beta_start", "beta_end", why="the noise must increase along the schedule")
            if self.timestep_strata > self.num_timesteps:
                raise wrong(self, "timestep_strata", "num_timesteps", why="there are more strata than timesteps")

    def __init__(self, config: Config) -> None:
        config.check()
        self.config = config

    @cached_property
    def alphas_cumprod(self) -> Tensor:
        """Noise schedule: ᾱ of each timestep, float64 [num_timesteps].

        Source:
            Zero terminal SNR: Lin et al. 2023, arXiv:2305.08891.
        """
        import torch

        config = self.config
        roots = torch.linspace(config.beta_start**0.5, config.beta_end**0.5, config.num_timesteps, dtype=torch.float64)
        alphas = (1 - roots.square()).cumprod(0)
        alphas = alphas / (config.shift_scale + (1 - config.shift_scale) * alphas)
        if config.zero_terminal_snr:
            signal = alphas.sqrt()
            alphas = ((signal - signal[-1]) * signal[0] / (signal[0] - signal[-1])).square()
        return alphas

    def draw(self, samples: Sequence[PositionedSample], shapes: Sequence[Sequence[int]], *, seed: int) -> TimestepDraws:
        """Samples a timestep and noise for each sample."""
        pairs = zip(samples, shapes, strict=True)
        noise = [self.noise(shape, sample.position, seed=seed) for sample, shape in pairs]
        return self.levels([self.timestep(sample.position, seed=seed) for sample in samples], noise)

    def levels(self, timesteps: Sequence[int], noise: list[Tensor]) -> TimestepDraws:
        """Returns the `TimestepDraws` of samples with these timesteps and noise."""
        import torch

        bins = [timestep * NOISE_BINS // self.config.num_timesteps for timestep in timesteps]
        alphas = self.alphas_cumprod[list(timesteps)]
        return TimestepDraws(
            noise=noise,
            timesteps=torch.tensor(timesteps),
            bins=bins,
            bin_rows=torch.tensor(bins),
            signal=alphas.sqrt().float(),
            spread=(1 - alphas).sqrt().float(),
        )

    def timestep(self, position: int, *, seed: int) -> int:
        """Samples the timestep of the sample at `position` in the data stream, uniformly over the schedule.

        With `timestep_strata` N, N consecutive samples get timesteps from different parts of the schedule.
        """
        from worldsmith.objectives.noise_schedule import random_stream

        share, parts = random_stream(seed, position, TIMESTEP_STREAM).random(), self.config.timestep_strata
        if parts > 1:  # the start of a group is random, so that a rank does not always get the same part
            first = int(random_stream(seed, position // parts, STRATUM_STREAM).integers(parts))
            share = ((first + position) % parts + share) / parts
        return min(int(share * self.config.num_timesteps), self.config.num_timesteps - 1)

    def noise(self, shape: Sequence[int], position: int, *, seed: int) -> Tensor:
        from worldsmith.objectives.noise_schedule import random_stream, sample_noise

        noise = sample_noise(shape, seed=seed, position=position)
        if not self.config.offset_noise:
            return noise
        offset = float(random_stream(seed, position, OFFSET_STREAM).standard_normal())
        return noise + self.config.offset_noise * offset

    def inputs(self, latents: Sequence[Tensor], draws: TimestepDraws) -> tuple[list[Tensor], Tensor]:
        """Returns the noisy latents of each sample, float32 [C, t, h, w], and the timesteps, int64 [n].

        All latents must have the same shape.
        """
        import torch

        signal, spread = draws.factors()
        return list(signal * stack_tensors(latents).float() + spread * torch.stack(draws.noise)), draws.timesteps

    def losses(self, answers: Sequence[Tensor], latents: Sequence[Tensor], draws: TimestepDraws) -> Tensor:
        """Returns the loss of each sample, float32 [n]: the mean of w·(x - x0)² or, with `loss_type` l1, of w·|x - x0|.

        x0 are the clean `latents`, x the latents that follow from the network output v in `answers`. The weight w is
        min(1 / (1-ᾱ), `max_weight`).
        Without `max_weight` the squared loss equals the mean of (output - v)². All samples must have the same shape.
        """
        import torch

        signal, spread = draws.factors()
        target = signal * torch.stack(draws.noise) - spread * stack_tensors(latents).float()
        error = stack_tensors(answers).float() - target
        weights = spread.square().reciprocal().clamp(max=self.config.max_weight or math.inf)
        if self.config.loss_type == "l1":
            return (weights * spread * error.abs()).flatten(1).mean(dim=1)
        losses = error.square() if self.config.max_weight is None else weights * (spread * error).square()
        return losses.flatten(1).mean(dim=1)

    def add_up(self, losses: Tensor, draws: TimestepDraws, *, tokens: int) -> BatchLoss:
        """Returns the sum of a batch's losses, with the metric "loss_by_noise" for ten ranges of timesteps.

        Args:
            losses: Loss of each sample [n], from the method `losses`.
            draws: Timesteps from `draw`.
            tokens: Number of tokens of the batch.
        """
        exact = losses.double()
        metrics = sum_by_noise(exact.detach(), draws)
        return BatchLoss(sum=exact.sum(), samples=len(draws), tokens=tokens, metrics=metrics)
