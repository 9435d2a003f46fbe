"""Functions that count the records of a data set and recognize a model: recipes have both, this package neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldsmith.config.recipes.registry import import_shipped

Counter = Callable[[dict[str, Any]], tuple[int, int]]
_COUNTERS: list[Counter] = []
_MODELS: list[Callable[[str], str]] = []


def counts_samples(count: Counter) -> Counter:
    """Registers the function that counts the records of a data set, from its settings as plain data.

    It returns (records, records that can be used), and raises ValueError or OSError where they cannot be counted.
    """
    _COUNTERS[:] = [count]
    return count


def count_records(dataset: dict[str, Any]) -> int:
    """Number of records, whether they can be used or not. Raises ValueError or OSError."""
    return _count(dataset)[0]


def count_samples(dataset: dict[str, Any]) -> int:
    """Number of records that can be used. Raises ValueError or OSError."""
    return _count(dataset)[1]


def _count(dataset: dict[str, Any]) -> tuple[int, int]:
    import_shipped()
    if not _COUNTERS:
        raise ValueError("no recipe here knows data sets of conversations")
    return _COUNTERS[0](dataset)


def describes_models(describe: Callable[[str], str]) -> Callable[[str], str]:
    """Registers the function that describes the network of a model, by its hub name or folder.

    It raises ValueError, in words, for a network that cannot be trained.
    """
    _MODELS[:] = [describe]
    return describe


def describe_model(name: str) -> str:
    """Raises ValueError."""
    import_shipped()
    return _MODELS[0](name) if _MODELS else ""
