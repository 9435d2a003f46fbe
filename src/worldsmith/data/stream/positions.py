"""Positions in the endless stream of samples: order, randomness, and distribution over ranks."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def sample_index(position: int, length: int, *, seed: int, shuffle: bool) -> int:
    """Returns the dataset index of the sample at a stream position.

    Args:
        position: Position in the stream: epoch * length + i.
        length: Number of samples of an epoch.
        seed: Seed of the order.
        shuffle: Whether each epoch has its own random order; False: dataset order.
    """
    epoch, i = divmod(position, length)
    return int(epoch_order(length, seed, epoch)[i]) if shuffle else i


@lru_cache(maxsize=2)
def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the permutation of the samples in one epoch, int32 [length] (int64 from 2**31 samples on).

    Two results are cached, since samples that wait for a pack may belong to the previous epoch.
    """
    import numpy as np

    # RandomState is numpy's frozen generator: the same order in every release.
    order = np.arange(length, dtype=np.int32 if length < 1 << 31 else np.int64)
    np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, epoch]).shuffle(order)
    return order


def sample_rng(seed: int, position: int, subject: str) -> random.Random:
    """Returns the random generator for one aspect of the sample at a stream position.

    Args:
        seed: Seed of the data loader.
        position: Position in the stream.
        subject: Aspect with its own generator, such as "caption" or "frames".
    """
    return random.Random(f"{seed}/{position}/{subject}")


class Cursor:
    """Reading position of one rank: positions in `set_aside` are read first, then `next_position` and later ones.

    `set_aside` contains positions whose samples were read before but not yielded in a pack; it is modified in place.
    """

    def __init__(self, set_aside: deque[int], next_position: int) -> None:
        self.set_aside = set_aside
        self.next_position = next_position

    def positions(self, step: int, stop: int | None = None) -> Positions:
        return Positions(list(self.set_aside), self.next_position, step, stop)

    def advance(self, position: int, step: int) -> None:
        if self.set_aside:
            self.set_aside.popleft()
        else:
            self.next_position = position + step


class Positions:
    """Iterable of the stream positions that one rank reads, in order.

    Args:
        first: Positions that come first.
        start: Position that follows those in `first`.
        step: Distance of two positions from `start` on: the number of ranks.
        stop: Exclusive end of the positions from `start` on; None: endless.
    """

    def __init__(self, first: list[int], start: int, step: int, stop: int | None = None) -> None:
        self.first, self.start, self.step, self.stop = first, start, step, stop

    def __iter__(self) -> Iterator[int]:
        endless = itertools.count(self.start, self.step)
        rest = endless if self.stop is None else range(self.start, self.stop, self.step)
        return itertools.chain(self.first, rest)


@dataclass(frozen=True, slots=True)
class Unread:
    """Stream positions that no rank has yielded: those in `earlier` (ascending), and all from `next_position` on."""

    next_position: int
    earlier: list[int]

    def share(self, rank: int, size: int) -> tuple[int, list[int]]:
        """Returns (first position to read, earlier positions to read before it) for rank `rank` of `size` ranks.

        Together, the `size` ranks read each position exactly once.
        """
        first = self.next_position + (rank - self.next_position) % size
        return first, self.earlier[rank::size]


def merge_positions(states: Sequence[Mapping[str, Any]]) -> Unread:
    """Returns the stream positions that no rank of a run has yielded, from the saved states of all ranks.

    Args:
        states: `state_dict()` of every rank's loader, in rank order.

    Raises:
        ValueError: If the states are not those of all ranks of one run.
    """
    size = len(states)
    found = [(state["rank"], state["world_size"]) for state in states]
    if found != [(rank, size) for rank in range(size)]:
        raise ValueError(
            f"the saved data loader states belong to (rank, ranks) {found}; expected one for each of {size} ranks"
        )
    next_position = max(state["next_position"] for state in states)
    earlier = {position for state in states for position in state["set_aside"]}
    for state in states:
        earlier.update(range(state["next_position"], next_position, size))
    return Unread(next_position, sorted(earlier))
