"""Packing from a pool of samples: fuller packs than in order, and no sample waits for ever."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from worldsmith.data.stream.packing import Packer

T = TypeVar("T")


class PoolPacker(Packer[T]):
    """Keeps `lookahead` samples; a pack is the oldest of them and those that leave the least room in it.

    As in order, a pack stays strictly below `max_sequence_length` tokens. What is left keeps its order, so that the
    pool of a run that goes on is read anew from the positions of its samples.
    """

    def pack(self, source: Iterator[T]) -> list[T]:
        room = math.inf if self.max_sequence_length is None else self.max_sequence_length - 1
        pack: list[T] = []
        self._refill(source)
        while self.buffer and self._may_grow(pack) and (not pack or self._has_room(room)):
            pack.append(self.buffer.popleft())
            room -= self.num_tokens(pack[-1])
            self._refill(source)
        if self.buffer and self._may_grow(pack):
            most = len(self.buffer) if self.max_samples_per_batch is None else self.max_samples_per_batch - len(pack)
            chosen = fullest([self.num_tokens(sample) for sample in self.buffer], int(room), most)
            pack += [self.buffer[number] for number in chosen]
            for number in reversed(chosen):
                del self.buffer[number]
        return pack

    def _has_room(self, room: float) -> bool:
        """Whether the next oldest may go in unchosen: a pool of less than twice the room leaves few choices."""
        lengths = [self.num_tokens(sample) for sample in self.buffer]
        return lengths[0] <= room and sum(lengths) <= 2 * room

    def _may_grow(self, pack: Sequence[T]) -> bool:
        return len(pack) != self.max_samples_per_batch

    def _refill(self, source: Iterator[T]) -> None:
        while len(self.buffer) < self.lookahead and (sample := next(source, None)) is not None:
            self.require_fit(sample)
            self.buffer.append(sample)


class PaddedPacker(PoolPacker[T]):
    """The same for batches that are padded: the longest sample times their number is what counts.

    After the oldest comes, each time, the sample that makes that number the smallest, and of these the longest.
    """

    def pack(self, source: Iterator[T]) -> list[T]:
        self._refill(source)
        if not self.buffer:
            return []
        pack = [self.buffer.popleft()]
        longest = self.num_tokens(pack[0])
        while self._may_grow(pack):
            self._refill(source)
            lengths = [self.num_tokens(sample) for sample in self.buffer]
            most = math.inf if self.max_sequence_length is None else (self.max_sequence_length - 1) // (len(pack) + 1)
            fitting = [number for number, length in enumerate(lengths) if max(longest, length) <= most]
            if not fitting:
                break
            best = min(fitting, key=lambda number: (max(longest, lengths[number]), -lengths[number]))
            pack.append(self.buffer[best])
            longest = max(longest, lengths[best])
            del self.buffer[best]
        return pack


class AlikePacker(PoolPacker[T]):
    """The oldest sample and those of the pool that have its shape, for batches that are stacked."""

    def pack(self, source: Iterator[T]) -> list[T]:
        room = math.inf if self.max_sequence_length is None else self.max_sequence_length - 1
        pack: list[T] = []
        while self._may_grow(pack):
            self._refill(source)
            alike = (n for n, sample in enumerate(self.buffer) if not pack or self.shape(sample) == self.shape(pack[0]))
            found = next((n for n in alike if self.num_tokens(self.buffer[n]) <= room), None)
            if found is None:
                break
            pack.append(self.buffer[found])
            room -= self.num_tokens(pack[-1])
            del self.buffer[found]
        return pack


def fullest(lengths: Sequence[int], room: int, most: int) -> list[int]:
    """Numbers, ascending, of at most `most` lengths whose sum is the largest that is no more than `room`.

    Of those with one sum the fewest. Subset sum by dynamic programming: one pass over the room for each length.
    """
    import numpy as np

    fewest = np.full(room + 1, len(lengths) + 1)
    """By sum, how many of the lengths seen so far it takes."""
    fewest[0] = 0
    order = sorted((number for number, length in enumerate(lengths) if length <= room), key=lambda n: -lengths[n])
    taken = np.zeros((len(order), room + 1), bool)
    for row, number in enumerate(order):
        length = lengths[number]
        with_it = fewest[: room + 1 - length] + 1
        taken[row, length:] = with_it < fewest[length:]
        fewest[length:] = np.minimum(fewest[length:], with_it)
    left = int(np.flatnonzero(fewest <= min(most, len(lengths)))[-1])
    chosen = []
    for row, number in reversed(list(enumerate(order))):
        if taken[row, left]:
            chosen.append(number)
            left -= lengths[number]
    return sorted(chosen)
