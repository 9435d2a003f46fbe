"""The order of the endless stream of samples, a pure function of (seed, position)."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def sample_index(position: int, length: int, *, seed: int, shuffle: bool) -> int:
    """Index in the data set of stream position `position` = epoch * length + i."""
    epoch, i = divmod(position, length)
    return int(epoch_order(length, seed, epoch)[i]) if shuffle else i


@lru_cache(maxsize=2)
def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of one epoch. Two are kept: samples that were set aside may belong to the epoch before."""
    import numpy as np

    # RandomState is numpy's frozen generator: the same order in every release.
    return np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, epoch]).permutation(length)


def sample_rng(seed: int, position: int, subject: str) -> random.Random:
    """Randomness of one subject ("caption", "frames", …) of one sample. A new subject does not disturb the others."""
    return random.Random(f"{seed}/{position}/{subject}")
