"""The data position of many ranks, joined and dealt anew: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsmith.data.stream.packing import SequentialPacker
from worldsmith.data.stream.positions import Cursor, merge_positions

TOKENS = [random.Random(7).randint(1, 60) for _ in range(5000)]
"""Length of the sample at each position."""


@dataclass
class Rank:
    """One rank's reading and packing, as the loader does it, on positions instead of clips."""

    rank: int
    size: int
    next_position: int
    set_aside: list[int]
    read: list[int] = field(default_factory=list)

    def take(self, packs: int, *, cap: int, lookahead: int) -> None:
        cursor = Cursor(deque_of(self.set_aside), self.next_position)
        packer = SequentialPacker(
            lambda p: TOKENS[p], max_sequence_length=cap, max_samples_per_batch=None, lookahead=lookahead
        )

        def stream() -> Iterator[int]:
            for position in cursor.positions(self.size):
                cursor.advance(position, self.size)
                yield position

        source = stream()
        for _ in range(packs):
            self.read += packer.pack(source)
        self.next_position = cursor.next_position
        self.set_aside = [*packer.buffer, *cursor.set_aside]

    def state(self) -> dict:
        return {
            "rank": self.rank,
            "world_size": self.size,
            "next_position": self.next_position,
            "set_aside": self.set_aside,
        }


def deque_of(items: list[int]):
    from collections import deque

    return deque(items)


@given(
    phases=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 7)), min_size=1, max_size=6),
    cap=st.integers(61, 200),
    lookahead=st.integers(1, 10),
)
def test_any_sequence_of_rank_counts_reads_every_sample_once(
    phases: list[tuple[int, int]], cap: int, lookahead: int
) -> None:
    """Ranks come and go, each packing at its own pace; what was read and what is unread are together the stream."""
    read: list[int] = []
    ranks = [Rank(0, 1, 0, [])]
    for size, packs in phases:
        unread = merge_positions([rank.state() for rank in ranks])
        ranks = [Rank(number, size, *unread.share(number, size)) for number in range(size)]
        for rank in ranks:
            rank.take(packs, cap=cap, lookahead=lookahead)
            read += rank.read
    unread = merge_positions([rank.state() for rank in ranks])
    assert unread.earlier == sorted(unread.earlier)
    assert len(read) == len(set(read))
    assert sorted(read + unread.earlier) == list(range(unread.next_position))


@given(size=st.integers(1, 9), start=st.integers(0, 50), earlier=st.lists(st.integers(0, 40), unique=True))
def test_shares_cover_everything_once(size: int, start: int, earlier: list[int]) -> None:
    """Of the list, and of the positions from `next_position` on."""
    from worldsmith.data.stream.positions import Unread

    unread = Unread(start, sorted(earlier))
    shares = [unread.share(rank, size) for rank in range(size)]
    assert sorted(position for _, share in shares for position in share) == unread.earlier
    ahead = [p for rank, (first, _) in enumerate(shares) for p in islice(range(first, 10**6, size), 20)]
    assert sorted(ahead)[: 19 * size] == list(range(start, start + 19 * size))
    assert all(first % size == rank for rank, (first, _) in enumerate(shares))


def test_states_of_different_runs_are_not_joined() -> None:
    state = {"rank": 0, "world_size": 2, "next_position": 4, "set_aside": []}
    with pytest.raises(ValueError, match="expected one for each of 1"):
        merge_positions([state])
    with pytest.raises(ValueError, match="expected one for each of 2"):
        merge_positions([state, state])
