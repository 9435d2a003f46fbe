"""Timing of several ways to do the same, taking turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def medians(ways: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median seconds of each way over `rounds` turns, after one turn that warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def relative_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of any tensor, relative to that tensor's largest value. Names must be equal."""
    if found.keys() != expected.keys():
        raise ValueError(f"other names: {sorted(found.keys() ^ expected.keys())[:4]}")
    tiny = torch.finfo(torch.float32).tiny
    return max(((found[n] - expected[n]).abs().max() / expected[n].abs().max().clamp_min(tiny)).item() for n in found)
