"""UniPC of order 2 for rectified flow: B(h) = expm1(-h), predicting the clean sample, with corrector.

Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast Sampling of Diffusion Models" (2023), with
x_t = σ·noise + (1-σ)·x0, v = noise - x0 and λ = ln((1-σ)/σ). The numbers are those of diffusers'
`UniPCMultistepScheduler` with `use_flow_sigmas`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

NUM_TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Noise levels of a sampling run, from almost pure noise down to 0."""

    sigmas: tuple[float, ...]
    """steps + 1 noise levels, rounded to float32; the last is 0."""
    timesteps: tuple[int, ...]
    """What the network is told at each step: 1000·σ, truncated."""


def flow_schedule(steps: int, shift: float) -> Schedule:
    """σ_i = s·g/(1+(s-1)·g) over g = linspace(0.999, 0, steps+1) without its end, then 0.

    Raises ValueError for less than one step or a shift that is not positive.
    """
    if steps < 1:
        raise ValueError(f"sampling needs at least 1 step, found steps={steps}")
    if not (shift > 0 and math.isfinite(shift)):
        raise ValueError(f"the schedule's shift must be positive, found {shift}")
    grid = np.linspace(1 - 1 / NUM_TRAIN_TIMESTEPS, 0, steps + 1)[:-1]
    sigmas = shift * grid / (1 + (shift - 1) * grid)
    # The truncation looks at the exact value, the solver at the float32 one: 1-σ is tiny at the start, and ln(1-σ)
    # would show the difference.
    return Schedule(
        sigmas=(*(float(np.float32(sigma)) for sigma in sigmas), 0.0),
        timesteps=tuple(int(sigma * NUM_TRAIN_TIMESTEPS) for sigma in sigmas),
    )


class UniPC:
    """The solver of one sample: call `step` with the velocity at each noise level in turn."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.index = 0
        self.order = 0
        self.clean: list[Tensor] = []  # predictions of the clean sample, newest last, two at most
        self.before: Tensor | None = None  # the state from which the last transition started

    def step(self, velocity: Tensor, sample: Tensor) -> Tensor:
        """Moves `sample` from its noise level to the next. Raises RuntimeError when no step is left."""
        steps = len(self.schedule.timesteps)
        if self.index >= steps:
            raise RuntimeError(f"all {steps} steps of this schedule are done; make a new UniPC for another sample")
        sigmas, i = self.schedule.sigmas, self.index
        clean = sample - sigmas[i] * velocity
        if self.before is not None:
            sample = correct(self.before, self.clean, clean, sigmas[max(0, i - 2) : i + 1], self.order)
        self.clean = [*self.clean[-1:], clean]
        self.before = sample
        self.order = min(2, steps - i, i + 1)
        self.index += 1
        return predict(sample, self.clean, sigmas[max(0, i - 1) : i + 2], self.order)


def predict(sample: Tensor, clean: list[Tensor], sigmas: tuple[float, ...], order: int) -> Tensor:
    """The state at sigmas[-1] from that at sigmas[-2]; clean[-1] belongs to sigmas[-2], clean[-2] to sigmas[-3]."""
    sigma, target = sigmas[-2:]
    if target == 0:
        return clean[-1].clone()
    h = log_snr(target) - log_snr(sigma)
    growth = math.expm1(-h)
    result = (target / sigma) * sample - (1 - target) * growth * clean[-1]
    if order == 2:
        ratio = (log_snr(sigmas[-3]) - log_snr(sigma)) / h
        result = result - (1 - target) * growth * 0.5 * (clean[-2] - clean[-1]) / ratio
    return result


def correct(before: Tensor, clean: list[Tensor], fresh: Tensor, sigmas: tuple[float, ...], order: int) -> Tensor:
    """The state at sigmas[-1] again, now that the prediction `fresh` made there is known.

    `before` is the state at sigmas[-2]; clean[-1] was predicted there, clean[-2] at sigmas[-3]; `order` is that of the
    transition that is corrected.
    """
    start, sigma = sigmas[-2:]
    h = log_snr(sigma) - log_snr(start)
    growth = math.expm1(-h)
    change = fresh - clean[-1]
    if order == 1:
        update = 0.5 * change
    else:
        ratio = (log_snr(sigmas[-3]) - log_snr(start)) / h
        phi = growth / -h - 1
        b1 = phi / growth
        b2 = 2 * (phi / -h - 0.5) / growth
        rho = (b1 - b2) / (1 - ratio)
        update = rho * (clean[-2] - clean[-1]) / ratio + (b1 - rho) * change
    return (sigma / start) * before - (1 - sigma) * growth * (clean[-1] + update)


def log_snr(sigma: float) -> float:
    return math.log((1 - sigma) / sigma)
