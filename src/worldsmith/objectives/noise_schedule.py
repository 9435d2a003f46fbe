"""Noise levels of training samples: distributions of σ, their shift, and the random streams.

σ = 1 is pure noise, σ = 0 is clean data. All random values of a sample are a pure function of the run's seed and the
sample's position in the data stream: they depend on neither packing, number of ranks nor gradient accumulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SIGMA_STREAM = 0
NOISE_STREAM = 1
POSTERIOR_STREAM = 2
"""Random stream for sampling latents from the VAE's mean and variance."""
NETWORK_STREAM = 5
"""Seed streams of a network's own random numbers, such as dropout masks."""

MOST_DRAWS = 10_000
"""Max attempts to sample a noise level from a range before the range counts as empty."""

# The ltx2 distribution: quantiles that are stretched to [0, 1], its floor, and the fraction of uniform samples.
LTX2_UPPER_Z = 3.0902
LTX2_LOWER_Z = -2.5758
LTX2_FLOOR = 1e-3
LTX2_UNIFORM_SHARE = 0.1


def random_stream(seed: int, position: int, stream: int) -> np.random.Generator:
    """Returns an independent random generator for each (seed, position, stream).

    Philox is a counter-based generator whose bits are the same on every CPU. NumPy computes normal variates from them
    by table lookup; torch uses different vectorized code on different CPUs.

    Args:
        seed: Seed of the run.
        position: Position of the sample in the data stream.
        stream: Purpose of the values, such as `NOISE_STREAM`.

    Raises:
        ValueError: If seed or position is negative.
    """
    if seed < 0 or position < 0:
        raise ValueError(f"seed and sample position must not be negative, found seed={seed}, position={position}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream, position))))


def sample_noise(shape: Sequence[int], *, seed: int, position: int) -> Tensor:
    """Returns the standard normal training noise of the sample at `position`, float32 on the CPU."""
    return random_noise(shape, seed=seed, position=position, stream=NOISE_STREAM)


def random_noise(shape: Sequence[int], *, seed: int, position: int, stream: int) -> Tensor:
    """Returns standard normal noise from the random stream `stream` of the sample at `position`, float32 on the CPU."""
    return torch.from_numpy(random_stream(seed, position, stream).standard_normal(tuple(shape), dtype=np.float32))


def sample_sigma(
    distribution: str, shift: float, *, seed: int, position: int, within: tuple[float, float] = (0.0, 1.0)
) -> float:
    """Samples the noise level σ of the sample at `position`.

    Args:
        distribution: "waver", "logitnormal", "uniform" or "ltx2".
        shift: Shift of the noise schedule; above 1: more noise.
        seed: Seed of the run.
        position: Position of the sample in the data stream.
        within: Range [low, high) of accepted values, by rejection sampling; high = 1 is included.

    Raises:
        ValueError: If the distribution is unknown, or hardly ever has a value in the range.
    """
    rng, (low, high) = random_stream(seed, position, SIGMA_STREAM), within
    for _ in range(MOST_DRAWS):
        sigma = draw_sigma(rng, distribution, shift)
        if low <= sigma < high or sigma == high == 1:
            return sigma
    raise ValueError(
        f"the distribution '{distribution}' with a shift of {shift:g} has hardly a noise level from {low:g} to "
        f"{high:g} (none in {MOST_DRAWS} samples); use another distribution or shift"
    )


def draw_sigma(rng: np.random.Generator, distribution: str, shift: float) -> float:
    """Samples one noise level σ in [0, 1]."""
    if distribution == "ltx2":
        return ltx2(shift, z=rng.standard_normal(), choice=rng.random(), uniform=rng.random())
    if distribution == "logitnormal":
        time = sigmoid(rng.standard_normal())
    elif distribution == "waver":
        time = waver(rng.random())
    elif distribution == "uniform":
        time = rng.random()
    else:
        raise ValueError(f"unknown noise distribution '{distribution}'; expected waver, logitnormal, uniform or ltx2")
    return shift_sigma(time, shift)


def waver(u: float) -> float:
    """Maps u in [0, 1] to 1 - u - 1.29·(cos²(πu/2) - 1 + u): 0 maps to 1, 1 maps to 0, and the middle is flattened."""
    return 1.0 - u - 1.29 * (math.cos(math.pi * u / 2) ** 2 - 1.0 + u)


def shift_sigma(time: float, shift: float) -> float:
    """Computes s·t / (1 + (s-1)·t), which shifts t towards noise for s > 1 and keeps 0 and 1."""
    return shift * time / (1.0 + (shift - 1.0) * time)


def ltx2(shift: float, *, z: float, choice: float, uniform: float) -> float:
    """Computes σ of the ltx2 distribution: a logit-normal of mean ln(shift), stretched between two of its quantiles.

    A fraction of the values is uniform. The mean contains the shift, so it is not applied again.

    Args:
        shift: Shift of the noise schedule.
        z: Standard normal value.
        choice: Uniform value that selects between logit-normal and uniform.
        uniform: Uniform value for the second case.
    """
    if choice < LTX2_UNIFORM_SHARE:
        return LTX2_FLOOR + (1.0 - LTX2_FLOOR) * uniform
    mean = math.log(shift)
    low, high = sigmoid(mean + LTX2_LOWER_Z), sigmoid(mean + LTX2_UPPER_Z)
    sigma = (sigmoid(mean + z) - low) / (high - low)
    if sigma < LTX2_FLOOR:
        sigma = 2 * LTX2_FLOOR - sigma
    return min(max(sigma, 0.0), 1.0)


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))
