"""`AssumedBatch`: what a plan takes for a batch of data that it cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CAPTION_TOKENS = 200
"""Of a caption, and of the text of a conversation."""


@dataclass(frozen=True, slots=True)
class AssumedBatch:
    """Samples of the kind that a task's loader gives. Their large tensors have one value and no memory of their own."""

    samples: Sequence[Any]
    assumption: str
    """What was assumed, in words: "46 clips of 61 frames of 320x192 pixels, captions of 211 tokens"."""


def count_of(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
