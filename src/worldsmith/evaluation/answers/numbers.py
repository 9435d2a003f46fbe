"""Figures of answers that are numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from worldsmith.evaluation.intervals import mean_interval, share_interval


def measure_numbers(
    said: Sequence[float | None], true: Sequence[float], agree: Callable[[float, float], bool]
) -> dict[str, Any]:
    """Figures of answers against true numbers; None, for an answer that could not be read, is wrong, and in no error.

    `relative_error` is the mean of |said - true| / |true| where the true number is not 0.
    """
    total = len(true)
    right = sum(answer is not None and agree(answer, truth) for answer, truth in zip(said, true))
    errors = [abs(a - t) / abs(t) for a, t in zip(said, true) if a is not None and t]
    return {
        "total": total,
        "correct": right,
        "accuracy": right / total if total else None,
        "accuracy_interval": share_interval(right, total),
        "unparsed": sum(answer is None for answer in said),
        "relative_error": math.fsum(errors) / len(errors) if errors else None,
        "relative_error_interval": mean_interval(sorted(errors)),
    }
