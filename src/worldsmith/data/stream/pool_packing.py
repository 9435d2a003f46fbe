"""Packing from a pool of samples: fuller packs than in order, and no sample waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from worldsmith.data.stream.packing import check_caps

T = TypeVar("T")


class PoolPacker(Generic[T]):
    """Keeps `lookahead` samples; a pack is the oldest of them and then, each time, the largest that still fits.

    As in order, a pack stays strictly below `max_sequence_length` tokens. What is left keeps its order, so that the
    pool of a run that goes on is read anew from the positions of its samples.
    """

    def __init__(
        self,
        num_tokens: Callable[[T], int],
        *,
        max_sequence_length: int | None,
        max_samples_per_batch: int | None,
        lookahead: int,
    ) -> None:
        check_caps(max_sequence_length, max_samples_per_batch, lookahead)
        self.num_tokens = num_tokens
        self.max_sequence_length = max_sequence_length
        self.max_samples_per_batch = max_samples_per_batch
        self.lookahead = lookahead
        self.buffer: deque[T] = deque()
        """The pool, the oldest first."""

    def pack(self, source: Iterator[T]) -> list[T]:
        """The next pack; empty when the pool and `source` are exhausted. Raises ValueError for one over the cap."""
        self._refill(source)
        if not self.buffer:
            return []
        pack = [self.buffer.popleft()]
        tokens = [self.num_tokens(pack[0])]
        while len(pack) != self.max_samples_per_batch:
            self._refill(source)
            lengths = [self.num_tokens(sample) for sample in self.buffer]
            fitting = [number for number, length in enumerate(lengths) if self.fits([*tokens, length])]
            if not fitting:
                break
            best = min(fitting, key=lambda number: self.rank(tokens, lengths[number]))
            pack.append(self.buffer[best])
            tokens.append(lengths[best])
            del self.buffer[best]
        return pack

    def _refill(self, source: Iterator[T]) -> None:
        while len(self.buffer) < self.lookahead and (sample := next(source, None)) is not None:
            if not self.fits([self.num_tokens(sample)]):
                raise ValueError(
                    f"a sample of {self.num_tokens(sample)} tokens fits into no pack of {self.max_sequence_length}"
                )
            self.buffer.append(sample)

    def fits(self, tokens: Sequence[int]) -> bool:
        """Whether samples of these lengths make a pack."""
        return self.max_sequence_length is None or self.cost(tokens) < self.max_sequence_length

    def cost(self, tokens: Sequence[int]) -> int:
        """What counts against the cap."""
        return sum(tokens)

    def rank(self, tokens: Sequence[int], further: int) -> tuple[int, ...]:
        """The smaller, the sooner a sample of `further` tokens is taken into the pack; among equals the oldest."""
        return (-further,)


class PaddedPacker(PoolPacker[T]):
    """The same for batches that are padded: the longest sample times their number is what counts.

    After the oldest comes, each time, the sample that makes that number the smallest, and of these the longest.
    """

    def cost(self, tokens: Sequence[int]) -> int:
        return max(tokens) * len(tokens)

    def rank(self, tokens: Sequence[int], further: int) -> tuple[int, ...]:
        return max(*tokens, further), -further
