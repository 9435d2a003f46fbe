"""Metrics of `metrics.jsonl` over steps, downsampled while they are read to limit the number of points."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldsmith.files.lines import require_regular

MOST_BUCKETS = 800
"""Max number of points of one series."""
NO_CURVE = re.compile(
    r"samples|tokens|skipped(_total)?|failed_(saves|uploads)|unwritten|first_step|memory_before_bytes|val\w*/(samples|tokens|seconds)"
    r"|(loaded|rejected)/.*"
)
"""Counters, of which the last value is shown."""


@dataclass(slots=True)
class Bucket:
    """Consecutive values of a series: count, sum, min and max."""

    index: int
    """Step // width of the series."""
    count: int
    steps: float
    """Sum of the steps."""
    total: float
    low: float
    high: float

    def join(self, count: int, steps: float, total: float, low: float, high: float) -> None:
        self.count += count
        self.steps += steps
        self.total += total
        self.low = min(self.low, low)
        self.high = max(self.high, high)


@dataclass(slots=True)
class Series:
    """A metric over steps, downsampled to a limited number of buckets with min, max and mean.

    A bucket covers `width` steps; `width` is 1 until the limit is exceeded.
    """

    width: int = 1
    buckets: list[Bucket] = field(default_factory=list)
    values: int = 0
    """Number of values."""
    last: tuple[int, float] = (0, 0.0)
    """(step, value) of the newest value; `least` and `greatest`: of the min and the max."""
    least: tuple[int, float] = (0, math.inf)
    greatest: tuple[int, float] = (0, -math.inf)

    def add(self, step: int, value: float) -> None:
        self.values += 1
        self.last = (step, value)
        if value < self.least[1]:
            self.least = (step, value)
        if value > self.greatest[1]:
            self.greatest = (step, value)
        index = step // self.width
        if self.buckets and (known := self.buckets[-1]).index == index:
            known.join(1, step, value, value, value)
            return
        self.buckets.append(Bucket(index, 1, step, value, value, value))
        while len(self.buckets) > MOST_BUCKETS:
            self._widen()

    @property
    def thinned(self) -> bool:
        return len(self.buckets) < self.values

    def mean_of_newest(self) -> tuple[float, int]:
        """Returns (mean of the newest tenth of the values, number of values in this tenth)."""
        newest = self.buckets[-max(1, len(self.buckets) // 10) :]
        count = sum(bucket.count for bucket in newest)
        return sum(bucket.total for bucket in newest) / count, count

    def _widen(self) -> None:
        self.width *= 2
        former, self.buckets = self.buckets, []
        for bucket in former:
            bucket.index //= 2
            if self.buckets and (known := self.buckets[-1]).index == bucket.index:
                known.join(bucket.count, bucket.steps, bucket.total, bucket.low, bucket.high)
            else:
                self.buckets.append(bucket)


class MetricsReader:
    """Reads a metrics file incrementally: `read` adds the values of new lines to `series` and `latest`.

    A file that was replaced or truncated is read again from the start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin(None)

    def begin(self, inode: int | None) -> None:
        self.inode = inode
        self.position = 0
        self.series: dict[str, Series] = {}
        """Series by metric name; entries of a mapping are `name/key`."""
        self.latest: dict[str, Any] = {}
        """Newest value of each metric."""
        self.missing: Counter[str] = Counter()
        """Number of non-finite values by metric."""
        self.lines = self.broken = 0
        """Number of valid lines, and of invalid ones."""
        self.step: int | None = None
        """Step of the last valid line."""

    def read(self) -> None:
        """Reads new complete lines of the metrics file; a missing file is treated as empty.

        Raises:
            OSError: If the file is not readable.
        """
        try:
            require_regular(self.path)
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            stat = self.path.stat()
            if stat.st_ino != self.inode or stat.st_size < self.position:
                self.begin(stat.st_ino)
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                self.add_line(line)

    def add_line(self, line: bytes) -> None:
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
            if is_curve(name):
                self.series.setdefault(name, Series()).add(step, value)


@functools.cache
def is_curve(figure: str) -> bool:
    return NO_CURVE.fullmatch(figure) is None


def numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yields the numeric metrics of one line.

    Args:
        record: Parsed line of the metrics file.
        prefix: Text before each name.

    Yields:
        (name, number) of each metric, also of nested mappings (`outer/inner`); None instead of a non-finite number.
    """
    for key, value in record.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{key}/")
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            finite = value if value is None or math.isfinite(value) else None
            if prefix or key != "step":
                yield f"{prefix}{key}", finite
