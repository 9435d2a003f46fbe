"""Many values in few: percentiles and histograms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

BARS = 8
"""Of a histogram, at most."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread; percentiles are values that are there (nearest rank)."""

    count: int
    total: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bars with their labels, in ascending order, or of words the most frequent first."""

    labels: list[str]
    counts: list[int]


def spread(values: Sequence[float]) -> Spread | None:
    """None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
    return Spread(len(ordered), sum(ordered), p50, p95, ordered[-1])


def histogram(values: Sequence[float | str]) -> Histogram:
    """Few different numbers have a bar each, others share bars of equal width; rare words are "others"."""
    words = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if not isinstance(value, str)]
    if words:
        common = Counter(words).most_common()
        shown, rest = (common, []) if len(common) <= BARS else (common[: BARS - 1], common[BARS - 1 :])
        bars = [*shown, *([(f"{len(rest)} others", sum(count for _, count in rest))] if rest else [])]
    elif len(set(numbers)) <= BARS:
        bars = [(short(value), count) for value, count in sorted(Counter(numbers).items())]
    else:
        bars = binned(numbers)
    return Histogram([label for label, _ in bars], [count for _, count in bars])


def binned(numbers: Sequence[float]) -> list[tuple[str, int]]:
    """Bars of equal width; of whole numbers, each holds whole numbers."""
    low, high = min(numbers), max(numbers)
    whole = all(float(number).is_integer() for number in numbers)
    width = math.ceil((high - low + 1) / BARS) if whole else (high - low) / BARS
    places = Counter(min(BARS - 1, int((number - low) / width)) for number in numbers)
    bars = []
    for place in range(max(places) + 1):
        first, last = low + place * width, low + (place + 1) * width - whole
        ends = dict.fromkeys((short(first), short(min(last, high))))
        bars.append(("–".join(ends), places[place]))
    return bars


def short(number: float) -> str:
    """Whole numbers as they are, others with four digits."""
    return str(int(number)) if float(number).is_integer() else f"{number:.4g}"
