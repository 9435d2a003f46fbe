"""Where a rank stands in the endless stream of samples."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Cursor:
    """Where a stream stands: set-aside positions that are still to be read again, then `next_position` and on."""

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
    """The positions that the worker processes fetch ahead of the cursor: up to `stop`, endless without it."""

    def __init__(self, first: list[int], start: int, step: int, stop: int | None = None) -> None:
        self.first, self.start, self.step, self.stop = first, start, step, stop

    def __iter__(self) -> Iterator[int]:
        endless = itertools.count(self.start, self.step)
        rest = endless if self.stop is None else range(self.start, self.stop, self.step)
        return itertools.chain(self.first, rest)


@dataclass(frozen=True, slots=True)
class Unread:
    """What several ranks together have not handed out yet: `earlier` (ascending), and all from `next_position` on."""

    next_position: int
    earlier: list[int]

    def share(self, rank: int, size: int) -> tuple[int, list[int]]:
        """(next position, set-aside positions) with which one of `size` ranks goes on; together they read all, once."""
        first = self.next_position + (rank - self.next_position) % size
        return first, self.earlier[rank::size]


def merge_positions(states: Sequence[Mapping[str, Any]]) -> Unread:
    """Joins the positions of all ranks of a run. Raises ValueError when they are not those of one run, complete."""
    size = len(states)
    found = [(state["rank"], state["world_size"]) for state in states]
    if found != [(rank, size) for rank in range(size)]:
        raise ValueError(f"the saved data positions are those of (rank, ranks) {found}; expected one of each of {size}")
    next_position = max(state["next_position"] for state in states)
    earlier = {position for state in states for position in state["set_aside"]}
    for state in states:
        earlier.update(range(state["next_position"], next_position, size))
    return Unread(next_position, sorted(earlier))
