"""95 % confidence intervals of shares and of correlations."""

from __future__ import annotations

import math

Z = 1.959963984540054
"""Of a normal distribution: 95 % lie within so many standard deviations."""


def share_interval(right: int, total: int) -> tuple[float, float] | None:
    """Wilson's score interval of right / total (Wilson 1927); None without any."""
    if not total:
        return None
    share, spread = right / total, Z * Z / total
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def correlation_interval(correlation: float | None, pairs: int) -> tuple[float, float] | None:
    """By Fisher's transform; None for fewer than four pairs and for a perfect correlation, where it says nothing."""
    if correlation is None or pairs < 4 or abs(correlation) >= 1:
        return None
    middle, half = math.atanh(correlation), Z / math.sqrt(pairs - 3)
    return math.tanh(middle - half), math.tanh(middle + half)
