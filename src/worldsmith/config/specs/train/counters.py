"""Who counts the samples of a data set: recipes know data sets, and this room knows none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldsmith.config.recipes.registry import import_shipped

Counter = Callable[[dict[str, Any]], int]
_COUNTERS: list[Counter] = []


def counts_samples(count: Counter) -> Counter:
    """Registers the function that counts the usable samples of a data set, from its settings as plain data.

    It raises ValueError or OSError, in words, where they cannot be counted.
    """
    _COUNTERS[:] = [count]
    return count


def count_samples(dataset: dict[str, Any]) -> int:
    """Raises ValueError or OSError."""
    import_shipped()
    if not _COUNTERS:
        raise ValueError("no recipe here knows data sets of conversations")
    return _COUNTERS[0](dataset)
