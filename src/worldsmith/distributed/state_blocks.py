"""Blocks of optimizer state in 8 bits. This module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

MIN_ELEMENTS = 4096
"""Min elements of a weight with 8-bit optimizer state, as in torchao and bitsandbytes."""
MIN_BLOCK, MAX_BLOCK = 16, 256
"""Min and max elements of a block; a block of 16 takes 1.25 bytes per element, one of 256 takes 1.016."""


def block_size(shape: Sequence[int]) -> int | None:
    """Returns the elements per scale of the 8-bit optimizer state of a weight, which divide the elements of a row.

    Args:
        shape: Shape of the complete weight; a row is an index of its first dimension.

    Returns:
        Largest divisor of a row that is at most `MAX_BLOCK`. None: the state is not stored in 8 bits, since the weight
        has fewer than `MIN_ELEMENTS` elements or the divisor is below `MIN_BLOCK`.
    """
    if math.prod(shape) < MIN_ELEMENTS:
        return None
    row = math.prod(shape[1:])
    size = next(size for size in range(min(row, MAX_BLOCK), 0, -1) if row % size == 0)
    return size if size >= MIN_BLOCK else None
