"""Where a rank stands in the endless stream of samples."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator


class Cursor:
    """Where a stream stands: set-aside positions that are still to be read again, then `next_position` and on."""

    def __init__(self, set_aside: deque[int], next_position: int) -> None:
        self.set_aside = set_aside
        self.next_position = next_position

    def positions(self, step: int) -> Iterator[int]:
        return iter(Positions(list(self.set_aside), self.next_position, step))

    def advance(self, position: int, step: int) -> None:
        if self.set_aside:
            self.set_aside.popleft()
        else:
            self.next_position = position + step


class Positions:
    """The endless list of positions that the worker processes fetch ahead of the cursor."""

    def __init__(self, first: list[int], start: int, step: int) -> None:
        self.first, self.start, self.step = first, start, step

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(self.first, itertools.count(self.start, self.step))
