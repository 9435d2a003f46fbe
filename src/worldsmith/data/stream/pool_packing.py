"""Packing from a pool of samples: fuller packs than in order, and no sample waits for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from worldsmith.data.stream.packing import Packer

T = TypeVar("T")


class PoolPacker(Packer[T]):
    """Keeps `lookahead` samples; a pack is the oldest of them and then, each time, the largest that still fits.

    As in order, a pack stays strictly below `max_sequence_length` tokens. What is left keeps its order, so that the
    pool of a run that goes on is read anew from the positions of its samples.
    """

    def pack(self, source: Iterator[T]) -> list[T]:
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
            self.require_fit(sample)
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
