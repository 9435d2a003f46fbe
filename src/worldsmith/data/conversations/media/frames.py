"""Which frames of a video are taken, and the times that the model is told."""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 0.01
"""By so much a rate that is stated may differ from another before they are told apart."""


def rates_differ(rate: float, other: float) -> bool:
    return abs(rate / other - 1) > TOLERANCE


def choose_frames(
    total: int,
    fps: float,
    *,
    wanted_fps: float | None,
    wanted: int | None,
    min_frames: int,
    max_frames: int,
    even: bool = False,
) -> list[int]:
    """Frame numbers, evenly from the first to the last: `wanted` of them, or `wanted_fps` a second.

    The formula is that of transformers' Qwen3-VL video processor. A short video gives all its frames. `even` makes the
    number even, as qwen-vl-utils does: `wanted` is rounded, and what follows from a rate is rounded down.
    """
    import numpy as np

    if wanted is None:
        assert wanted_fps is not None
        wanted = min(max(int(total / fps * wanted_fps), min_frames + even * (min_frames % 2)), max_frames)
        wanted = min(wanted, total) // 2 * 2 if even else wanted
    elif even:
        wanted = round(wanted / 2) * 2
    return [int(number) for number in np.linspace(0, total - 1, min(max(wanted, 1 + even), total)).round()]


def patch_times(times: Sequence[float], temporal: int) -> list[float]:
    """The time of each patch of `temporal` frames: the mean of its first and its last; the last frame is repeated."""
    padded = [*times, *[times[-1]] * (-len(times) % temporal)]
    return [(padded[i] + padded[i + temporal - 1]) / 2 for i in range(0, len(padded), temporal)]
