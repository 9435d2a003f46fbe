"""Reads data as a run reads them, and keeps of each sample only what is to be told of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.maker import Features, Made, SampleMaker
from worldsmith.data.stream.positions import Positions
from worldsmith.data.stream.quarantine import Quarantine, Rejection, Split
from worldsmith.data.stream.workers import fetch

AHEAD = 4
"""Samples that a process may be ahead of the others."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is told of one sample that has been read."""

    key: str
    position: int
    num_tokens: int
    """-1 for one that was left out before its tokens were counted."""
    seconds: float
    rejection: Rejection | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    """What a run counts of it, and says the first time."""
    features: Features = field(default_factory=dict)
    cells: int = 0
    """See `SampleMaker.cells`."""


class Inspector(SampleMaker[Seen]):
    """Makes samples by the maker of a run, in the same processes, and lets go of their pictures there."""

    def __init__(self, maker: SampleMaker[Any]) -> None:
        self.maker, self.dataset = maker, maker.dataset
        self.max_tokens = None  # which the maker itself holds samples against

    def make(self, position: int) -> Made[Seen]:
        self.maker.measured = None
        start = time.perf_counter()
        made = self.maker[position]
        seconds, item = time.perf_counter() - start, made.item
        if isinstance(item, Rejection):
            tokens = -1 if self.maker.measured is None else self.maker.measured
            return Made(Seen(item.key, position, tokens, seconds, item, made.notes))
        told = self.maker.features(item), self.maker.cells(item)
        return Made(Seen(item.key, position, item.num_tokens, seconds, None, made.notes, *told))

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        return self.maker.reject(position, reason, detail)


class Tally(Quarantine):
    """Counts what is left out as a run does, and neither says nor refuses anything."""

    refuses: ClassVar[bool] = False

    def __init__(self, split: Split = "train") -> None:
        super().__init__(None, split=split)
        self.rejections: list[Rejection] = []
        self.refusal: str | None = None
        """Why a run would stop because of too many broken samples."""

    def tell(self, rejection: Rejection) -> None:
        self.rejections.append(rejection)

    def check(self, total: int, *, max_bad_fraction: float, bad_samples_allowed: int) -> None:
        try:
            super().check(total, max_bad_fraction=max_bad_fraction, bad_samples_allowed=bad_samples_allowed)
        except DataError as error:
            self.refusal = str(error)


def inspect(
    loader: PackingDataLoader,
    positions: Sequence[int],
    *,
    workers: int,
    shown: Callable[[int, int], None] | None = None,
) -> Iterator[Seen]:
    """Reads these positions of the stream, in order; what is left out goes to the loader's quarantine.

    Deaths of workers are counted in `loader.counts`. `shown` is called with (done, all).
    """
    stretch = Positions(list(positions), 0, 1, 0)
    found = fetch(Inspector(loader.maker), stretch, workers=workers, prefetch=AHEAD, counts=loader.counts)
    for number, (position, made) in enumerate(zip(positions, found), start=1):
        item = made.item
        if isinstance(item, Rejection):  # its worker has died
            item = Seen(item.key, position, -1, 0.0, rejection=item)
        if item.rejection is not None:
            loader.quarantine.add(item.rejection)
        if shown is not None:
            shown(number, len(positions))
        yield item
