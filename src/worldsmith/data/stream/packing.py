"""Greedy packing of a stream of samples under a token cap or a sample count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from worldsmith.config import WrongValueError

T = TypeVar("T")


class Packer(ABC, Generic[T]):
    """Makes packs of a stream of samples, and keeps those of them that are for later."""

    def __init__(
        self,
        num_tokens: Callable[[T], int],
        *,
        max_sequence_length: int | None,
        max_samples_per_batch: int | None,
        lookahead: int = 10,
        shape: Callable[[T], Any] | None = None,
    ) -> None:
        """`shape`: what samples that are stacked must have in common; None: their number of tokens."""
        check_caps(max_sequence_length, max_samples_per_batch, lookahead)
        self.num_tokens = num_tokens
        self.max_sequence_length = max_sequence_length
        self.max_samples_per_batch = max_samples_per_batch
        self.lookahead = lookahead
        self.shape = shape or num_tokens
        self.buffer: deque[T] = deque()
        """Samples that were taken from the stream and are in no pack yet, the next one first."""

    @abstractmethod
    def pack(self, source: Iterator[T]) -> list[T]:
        """The next pack, from the buffer and from `source`; empty when both are exhausted.

        Raises ValueError for a sample that fits into none.
        """

    def require_fit(self, sample: T) -> int:
        """The tokens of a sample. Raises ValueError for one that no pack can hold."""
        tokens = self.num_tokens(sample)
        if self.max_sequence_length is not None and tokens >= self.max_sequence_length:
            raise ValueError(f"a sample of {tokens} tokens fits into no pack of {self.max_sequence_length}")
        return tokens


class SequentialPacker(Packer[T]):
    """Fills packs from a stream, in order.

    Token mode: a sample is taken while packed + sample < `max_sequence_length` (strictly below). One that does not fit
    is set aside; after `lookahead` of them the pack is closed and they return to the head of the buffer, in order.
    Count mode: every pack has `max_samples_per_batch` samples. With both caps a pack ends at the one it meets first.
    """

    def pack(self, source: Iterator[T]) -> list[T]:
        pack: list[T] = []
        set_aside: list[T] = []
        packed = 0
        while len(pack) != self.max_samples_per_batch and len(set_aside) < self.lookahead:
            try:
                sample = self.buffer.popleft() if self.buffer else next(source)
            except StopIteration:
                break
            tokens = self.require_fit(sample)
            if self.max_sequence_length is None or packed + tokens < self.max_sequence_length:
                pack.append(sample)
                packed += tokens
            else:
                set_aside.append(sample)
        self.buffer.extendleft(reversed(set_aside))
        return pack


def check_caps(
    max_sequence_length: int | None, max_samples_per_batch: int | None, lookahead: int, *, both: bool = True
) -> None:
    """Raises WrongValueError unless a cap is set, one alone where not `both` may be, and all values are positive."""
    caps = {"max_sequence_length": max_sequence_length, "max_samples_per_batch": max_samples_per_batch}
    if not both and (max_sequence_length is None) == (max_samples_per_batch is None):
        raise WrongValueError(
            caps,
            why="one cap is needed, and one alone",
            remedy="set exactly one (tokens per pack, e.g. 45056, or samples per pack) and leave the other unset",
        )
    if max_sequence_length is None and max_samples_per_batch is None:
        raise WrongValueError(
            caps, why="a cap is needed", remedy="set one of them, or both (tokens per pack, samples per pack)"
        )
    for name, value in {**caps, "lookahead": lookahead}.items():
        if value is not None and value < 1:
            raise WrongValueError({name: value}, allowed="at least 1")
