"""The figures of `metrics.jsonl` over steps, thinned while they are read: a page has room for so many points."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BUCKETS = 800
"""Of one series."""
COUNTED = ("loaded/", "rejected/")
"""What begins so is counted from the start of the run: its last value says all."""


@dataclass(slots=True)
class Bucket:
    """Neighbouring values of a series."""

    index: int
    count: int
    steps: float
    """Sum of the steps."""
    total: float
    low: float
    high: float


@dataclass(slots=True)
class Series:
    """One figure over steps, in so many buckets at most that keep its least, greatest and mean values.

    A bucket holds the values of `width` steps; there is one value in each until there are too many of them.
    """

    width: int = 1
    buckets: list[Bucket] = field(default_factory=list)
    values: int = 0
    last: tuple[int, float] = (0, 0.0)
    least: tuple[int, float] = (0, math.inf)
    greatest: tuple[int, float] = (0, -math.inf)

    def add(self, step: int, value: float) -> None:
        self.values += 1
        self.last = (step, value)
        self.least = min(self.least, (step, value), key=lambda point: point[1])
        self.greatest = max(self.greatest, (step, value), key=lambda point: point[1])
        self._put(Bucket(step // self.width, 1, step, value, value, value))
        while len(self.buckets) > MOST_BUCKETS:
            self.width *= 2
            former, self.buckets = self.buckets, []
            for bucket in former:
                bucket.index //= 2
                self._put(bucket)

    @property
    def thinned(self) -> bool:
        return len(self.buckets) < self.values

    def _put(self, new: Bucket) -> None:
        if not self.buckets or self.buckets[-1].index != new.index:
            self.buckets.append(new)
            return
        known = self.buckets[-1]
        known.count += new.count
        known.steps += new.steps
        known.total += new.total
        known.low, known.high = min(known.low, new.low), max(known.high, new.high)


class MetricsReader:
    """Reads a metrics file once, and later what has been added to it; from the start again when it was written anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(None)

    def _begin(self, inode: int | None) -> None:
        self.inode = inode
        self.position = 0
        self.series: dict[str, Series] = {}
        """By name; those within a mapping are `name/key`."""
        self.latest: dict[str, Any] = {}
        """The newest value of everything."""
        self.missing: Counter[str] = Counter()
        """How often a figure was not finite."""
        self.lines = self.broken = 0
        self.step: int | None = None

    def read(self) -> None:
        """Takes in the lines that are complete. Raises OSError; a file that is not there holds none."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            about = self.path.stat()
            if about.st_ino != self.inode or about.st_size < self.position:
                self._begin(about.st_ino)
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            self.broken += 1
            return
        self.lines += 1
        self.step = step = record["step"]
        for name, value in numbers(record):
            if value is None:
                self.missing[name] += 1
                continue
            self.latest[name] = value
            if not name.startswith(COUNTED):
                self.series.setdefault(name, Series()).add(step, value)


def numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """The numbers of a line by name, those of nested mappings too; None for what JSON has no number for."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{key}/")
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            finite = value if value is None or math.isfinite(value) else None
            if prefix or key != "step":
                yield f"{prefix}{key}", finite
