"""One stream of metrics, and everything that takes it: files, TensorBoard, trackers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes metrics. What it raises is not its run's end."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The figures after `step` steps: numbers, texts, lists, and mappings of them."""

    def close(self, *, failed: bool = False) -> None:
        """Nothing more will come. `failed`: the run ended with an error."""


class Sinks:
    """Gives all metrics to all sinks. An exception of one is said once and counted; it is given the next all the same.

    Each sink is named by what a reader of the messages would call it.
    """

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.lost: Counter[str] = Counter()
        """How many writes failed, by sink."""

    def add(self, name: str, make: Callable[[], Sink]) -> None:
        """Takes the sink that `make` makes; goes on without it when that fails."""
        try:
            self.sinks[name] = make()
        except Exception as error:
            logger.warning("%s cannot be written, the run goes on without it: %s", name, describe(error))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, sink in self.sinks.items():
            try:
                sink.write(step, metrics)
            except Exception as error:
                self.lost[name] += 1
                if self.lost[name] == 1:
                    logger.warning("%s cannot be written, the run goes on: %s", name, describe(error))

    def close(self, *, failed: bool = False) -> None:
        for name, sink in self.sinks.items():
            try:
                sink.close(failed=failed)
            except Exception as error:
                logger.warning("%s could not be closed: %s", name, describe(error))
            if self.lost[name]:
                logger.warning("%s: %d lines of it are missing, since they could not be written", name, self.lost[name])
        self.sinks = {}


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numeric metrics with their full names: nested mappings give `outer/inner`."""
    found: list[tuple[str, float]] = []
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found += numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "ndim", None) == 0):
            found.append((prefix + key, float(value)))
    return found


def describe(error: BaseException) -> str:
    """An exception in a line: its kind, and what it says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
