"""95 % confidence intervals of fractions, correlations and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Z = 1.959963984540054
"""A normal distribution has 95 % of its mass within this many standard deviations of the mean."""
DRAWS = 2000
"""Number of bootstrap resamples."""


def wilson_interval(right: int, total: int) -> tuple[float, float] | None:
    """Computes Wilson's 95 % score interval (low, high) of the fraction right / total; None if total is 0.

    Args:
        right: Number of successes, such as correct answers.
        total: Number of trials.

    Source:
        Wilson 1927.
    """
    if not total:
        return None
    share, spread = right / total, Z * Z / total
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def fraction_with_interval(name: str, right: int, total: int) -> dict[str, Any]:
    """Returns the fraction right / total with its Wilson interval, for metrics: {"NAME": …, "NAME_interval": …}.

    NAME is the argument `name`. Both values are None if `total` is 0.
    """
    return {name: right / total if total else None, f"{name}_interval": wilson_interval(right, total)}


def mean_with_interval(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Returns the mean of `values` with its interval, for metrics: {"NAME": …, "NAME_interval": …}.

    NAME is the argument `name`. Without values, both are None. The order of the values has no effect.
    """
    mean = math.fsum(values) / len(values) if values else None
    return {name: mean, f"{name}_interval": mean_interval(sorted(values))}


def accuracy_of(right: int, total: int) -> dict[str, Any]:
    """Returns the numbers of answers (`total`) and of correct ones (`correct`), and `accuracy` with its interval."""
    return {"total": total, "correct": right, **fraction_with_interval("accuracy", right, total)}


def correlation_interval(correlation: float | None, pairs: int) -> tuple[float, float] | None:
    """Computes the 95 % interval of a correlation by Fisher's transformation.

    Args:
        correlation: Pearson's correlation.
        pairs: Number of pairs.

    Returns:
        (low, high); None for fewer than 4 pairs, and for a correlation of ±1 or None.
    """
    if correlation is None or pairs < 4 or abs(correlation) >= 1:
        return None
    middle, half = math.atanh(correlation), Z / math.sqrt(pairs - 3)
    return math.tanh(middle - half), math.tanh(middle + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Computes the 95 % interval of the mean by the percentile bootstrap with a fixed seed (Efron 1979).

    Args:
        values: The values. Their order affects the result; sort them if the order has no meaning.

    Returns:
        (low, high); None for fewer than two values.
    """
    return ratio_interval(values, [1.0] * len(values))


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float] | None:
    """Computes the 95 % interval of the ratio of two means, whose values belong together, as `mean_interval`.

    Args:
        above: Values of the numerator.
        below: Values of the denominator, in the same order.

    Returns:
        (low, high); None for fewer than two pairs.
    """
    if len(above) < 2:
        return None
    import numpy as np

    drawn = np.random.default_rng(0).integers(0, len(above), (DRAWS, len(above)))
    means = [np.asarray(values, dtype=float)[drawn].mean(axis=1) for values in (above, below)]
    low, high = np.percentile(means[0] / means[1], (2.5, 97.5))
    return float(low), float(high)
