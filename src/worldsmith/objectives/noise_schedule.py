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
"""Number of the random stream with which latents are sampled from the VAE's mean and variance."""
NETWORK_STREAM = 5
"""Number of the random stream for the random values of the network itself, such as dropout masks."""

MAX_ATTEMPTS = 10_000
"""Max attempts to sample a noise level from a range before the range counts as empty."""

# The ltx2 distribution: quantiles that are stretched to [0, 1], its floor, and the fraction of uniform samples.
LTX2_UPPER_Z = 3.0902
LTX2_LOWER_Z = -2.5758
LTX2_FLOOR = 1e-3
LTX2_UNIFORM_SHARE = 0.1


def random_stream(seed: int, position: int, stream: int) -> np.random.Generator:
    """Returns a random generator whose values are independent for each combination of the arguments.

    Philox is a counter-based generator whose bits are the same on every CPU. NumPy computes normal variates from them
    by table lookup; torch uses different vectorized code on different CPUs.

    Args:
        seed: Seed of the run.
        position: Position of the sample in the data stream.
        stream: Number that stands for the purpose of the values, such as `NOISE_STREAM`.

    Raises:
        ValueError: If seed or position is negative.
    """
    if seed < 0 or position < 0:
        raise ValueError(f"seed and sample position must not be negative, found seed={seed}, position={position}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream, position))))


def sample_noise(shape: Sequence[int], *, seed: int, position: int) -> Tensor:
    """Returns the standard normal training noise of a sample, float32 on the CPU.

    Args:
        shape: Shape of the noise.
        seed: Seed of the run.
        position: Position of the sample in the data stream.
    """
    return random_noise(shape, seed=seed, position=position, stream=NOISE_STREAM)


def random_noise(shape: Sequence[int], *, seed: int, position: int, stream: int) -> Tensor:
    """Returns standard normal noise of a sample for any purpose, float32 on the CPU.

    Args:
        shape: Shape of the noise.
        seed: Seed of the run.
        position: Position of the sample in the data stream.
        stream: Number that stands for the purpose of the noise, such as `POSTERIOR_STREAM`.
    """
    return torch.from_numpy(random_stream(seed, position, stream).standard_normal(tuple(shape), dtype=np.float32))


def sample_sigma(
    distribution: str, shift: float, *, seed: int, position: int, within: tuple[float, float] = (0.0, 1.0)
) -> float:
    """Samples the noise level σ in [0, 1] of one training sample.

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
    for _ in range(MAX_ATTEMPTS):
        sigma = draw_sigma(rng, distribution, shift)
        if low <= sigma < high or sigma == high == 1:
            return sigma
    raise ValueError(
        f"the distribution '{distribution}' with a shift of {shift:g} has hardly any noise level from {low:g} to "
        f"{high:g} (none in {MAX_ATTEMPTS} samples); use another distribution or shift"
    )


def draw_sigma(rng: np.random.Generator, distribution: str, shift: float) -> float:
    """Samples one noise level σ in [0, 1] from a distribution with the given shift; ValueError for an unknown name."""
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
    """Maps a uniform u to a time of "waver", from 1 at u = 0 to 0 at u = 1: 1 - u - 1.29·(cos²(πu/2) - 1 + u)."""
    return 1.0 - u - 1.29 * (math.cos(math.pi * u / 2) ** 2 - 1.0 + u)


def shift_sigma(time: float, shift: float) -> float:
    """Returns s·t / (1 + (s-1)·t) for time t and shift s; s > 1 shifts t in [0, 1] towards 1, pure noise."""
    return shift * time / (1.0 + (shift - 1.0) * time)


def ltx2(shift: float, *, z: float, choice: float, uniform: float) -> float:
    """Returns a noise level σ of the ltx2 distribution, computed from three random values.

    The distribution is a logit-normal of mean ln(shift), stretched to [0, 1] between two of its quantiles; a fraction
    of the values is uniform instead. The shift is contained in the mean, so `shift_sigma` is not applied.

    Args:
        shift: Shift of the noise schedule.
        z: Standard normal value, used for the logit-normal.
        choice: Value in [0, 1) that selects between logit-normal and uniform.
        uniform: Value in [0, 1), used for the uniform distribution.
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
