"""Packers: group a stream of samples into packs, under a token cap or a sample count."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from worldsmith.config import WrongValueError

T = TypeVar("T")


class Packer(ABC, Generic[T]):
    """Base class of packers, which group a stream of samples into packs; samples for later packs wait in `buffer`.

    Args:
        num_tokens: Returns the number of tokens of a sample.
        max_sequence_length: Exclusive limit on the number of tokens of a pack; None: no limit.
        max_samples_per_batch: Max number of samples of a pack; None: no limit.
        lookahead: Number of samples that may wait while a pack is filled.
        shape: Returns the key that must be equal for samples of a stacked pack; None: their number of tokens.
    """

    def __init__(
        self,
        num_tokens: Callable[[T], int],
        *,
        max_sequence_length: int | None,
        max_samples_per_batch: int | None,
        lookahead: int = 10,
        shape: Callable[[T], Any] | None = None,
    ) -> None:
        """Stores the arguments, see the class; raises WrongValueError for invalid limits."""
        check_caps(max_sequence_length, max_samples_per_batch, lookahead)
        self.num_tokens = num_tokens
        self.max_sequence_length = max_sequence_length
        self.max_samples_per_batch = max_samples_per_batch
        self.lookahead = lookahead
        self.shape = shape or num_tokens
        self.buffer: deque[T] = deque()
        """Samples that were read from the stream but are not in a pack yet, the next one first."""

    @abstractmethod
    def pack(self, source: Iterator[T]) -> list[T]:
        """Returns the next pack, with samples from the buffer and from `source`; [] if both are exhausted.

        Raises:
            ValueError: If a sample is too long for any pack.
        """

    def require_fit(self, sample: T) -> int:
        """Returns the number of tokens of a sample; raises ValueError if it is too long for any pack."""
        tokens = self.num_tokens(sample)
        if self.max_sequence_length is not None and tokens >= self.max_sequence_length:
            raise ValueError(f"[E103] a sample of {tokens} tokens fits into no pack of {self.max_sequence_length}")
        return tokens


class SequentialPacker(Packer[T]):
    """Packer that adds samples in the order of the stream.

    With a token limit, a sample is added if the pack then has fewer than `max_sequence_length` tokens. A sample that
    does not fit is postponed; after `lookahead` such samples the pack is closed, and the postponed samples return
    to the head of the buffer, in order. With a limit of samples, a pack has `max_samples_per_batch` samples. With both
    limits, the first one that is reached ends a pack.
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
    """Raises WrongValueError unless a limit of a pack is set and all values are positive.

    Args:
        max_sequence_length: Exclusive token limit of a pack; None: no limit.
        max_samples_per_batch: Max number of samples of a pack; None: no limit.
        lookahead: Number of samples that may wait while a pack is filled.
        both: Whether both limits may be set; False: exactly one of them.
    """
    caps = {"max_sequence_length": max_sequence_length, "max_samples_per_batch": max_samples_per_batch}
    if not both and (max_sequence_length is None) == (max_samples_per_batch is None):
        raise WrongValueError(
            caps,
            why="exactly one limit is required",
            remedy="set max_sequence_length (tokens per pack, e.g. 45056) or max_samples_per_batch (samples per pack)",
        )
    if max_sequence_length is None and max_samples_per_batch is None:
        raise WrongValueError(
            caps,
            why="a limit is required",
            remedy="set max_sequence_length (tokens per pack), max_samples_per_batch (samples per pack), or both",
        )
    for name, value in {**caps, "lookahead": lookahead}.items():
        if value is not None and value < 1:
            raise WrongValueError({name: value}, allowed="at least 1")


class PoolPacker(Packer[T]):
    """Packer that chooses each pack from a pool of `lookahead` samples: the oldest one and those that fill it best.

    A pack stays strictly below `max_sequence_length` tokens. The oldest sample is always used, so no sample waits
    forever. The samples that remain in the pool keep their order. A resumed run reads them again by their stream
    positions.
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
        """Returns whether the oldest sample fits into `room` tokens and all buffered samples into `2 * room`.

        In this case the oldest sample is added: the pool is too small for a better choice.
        """
        lengths = [self.num_tokens(sample) for sample in self.buffer]
        return lengths[0] <= room and sum(lengths) <= 2 * room

    def _may_grow(self, pack: Sequence[T]) -> bool:
        return len(pack) != self.max_samples_per_batch

    def _refill(self, source: Iterator[T]) -> None:
        while len(self.buffer) < self.lookahead and (sample := next(source, None)) is not None:
            self.require_fit(sample)
            self.buffer.append(sample)


class PaddedPacker(PoolPacker[T]):
    """Packer for padded batches, whose cost is the length of the longest sample times the number of samples.

    The oldest sample is added first. Then each step adds the sample of the pool with which the cost of the batch is
    smallest; among several such samples, the longest one.
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
    """Packer for stacked batches: the oldest sample, and samples of the pool that have the same shape."""

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
    """Returns the ascending indices of the `lengths` whose sum is the largest one that does not exceed `room`.

    Of equal sums, that of the fewest lengths is chosen. Algorithm: subset sum by dynamic programming, with one pass
    over `room` per length.

    Args:
        lengths: Lengths to choose from, such as the numbers of tokens of samples.
        room: Max sum of the chosen lengths.
        most: Max number of chosen lengths.
    """
    import numpy as np

    fewest = np.full(room + 1, len(lengths) + 1)
    """For each sum, the min number of lengths seen so far that add up to it."""
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
