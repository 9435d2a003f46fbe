"""The result of inspecting a dataset: counts, distributions, skipped samples and problems."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import StreamDataset

EXAMPLES = 5
"""Max number of samples that are named per reason or flag."""
BARS = 8
"""Max number of bars of a histogram."""


@dataclass(slots=True)
class DataReport:
    """Result of inspecting a dataset. Counts equal those of a run over it.

    Values that were not measured are None or empty.
    """

    dataset: str
    records: int
    samples: int
    """Samples of all epochs together, by the file of records."""
    positions: int
    """Samples of an epoch, by the file of records."""
    looked_at: int = 0
    """Number of inspected samples of the first epoch."""
    decoded: bool = False
    """Whether the inspected samples were decoded as in training; if not, only headers were read."""
    kept: int | None = None
    """Number of inspected samples that are trained on; None if no sample was inspected."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """By reason: skipped records of the file and skipped samples among the inspected ones."""
    bad: int = 0
    """Broken samples among the skipped ones; they count against the limit of the run."""
    notes: dict[str, int] = field(default_factory=dict)
    """Counters of the loader for the inspected samples."""
    said: dict[str, list[str]] = field(default_factory=dict)
    """First messages of each counter."""
    flags: list[DataFlag] = field(default_factory=list)
    """Flags of the records, found before a sample is read."""
    cap: int | None = None
    """Exclusive token limit of a sample: that of a pack, or a smaller limit of samples."""
    cap_field: str = ""
    """Name of the setting with the limit, as the user wrote it."""
    cap_included: bool = False
    """Whether that setting is the max number of tokens of a sample (inclusive); False: it is the exclusive limit."""
    over_cap: int = 0
    """Inspected samples that reach the limit."""
    needed_cap: int | None = None
    """Smallest limit that no inspected sample reaches, if the current limit is too small."""
    tokens: Distribution | None = None
    """Tokens per sample, including samples above the limit."""
    features: dict[str, Histogram] = field(default_factory=dict)
    seconds: Distribution | None = None
    """Seconds per sample in one process."""
    packer: str = ""
    fill: dict[str, float] = field(default_factory=dict)
    """By packer: tokens per pack of the first epoch as a fraction of the limit, without the last pack of each rank."""
    packs: list[int] = field(default_factory=list)
    """Packs of each rank in the first epoch; an estimate if not all samples were inspected."""
    steps: list[float] = field(default_factory=list)
    """Optimizer steps of each rank in the first epoch."""
    later_steps: list[float] = field(default_factory=list)
    """Average steps of each rank in an epoch of a long run, in which the last pack is also full."""
    ranks_that_work: int | None = None
    """Max number of ranks that each have a step in an epoch, if not all do; 0 = none."""
    cells: int = 0
    """Number of latents of the trained samples of the first epoch; an estimate if not all samples were inspected."""
    duplicates: list[list[str]] = field(default_factory=list)
    """Groups of keys of samples with equal content."""
    problems: list[str] = field(default_factory=list)
    """Problems that would prevent the run from starting or stop it in its first epoch."""

    @classmethod
    def of_dataset(cls, dataset: StreamDataset, cap: int | None) -> DataReport:
        """Builds the report before any sample is read: counts and skipped records.

        Args:
            dataset: Dataset of a loader.
            cap: Exclusive cap on the tokens of a sample; None: no cap.
        """
        report = cls(dataset.name, dataset.num_records, dataset.num_samples, len(dataset), cap=cap)
        report.leave_out(dataset.rejections)
        return report

    def facts(self) -> dict[str, Any]:
        """Returns the report as plain data (dicts, lists, numbers, texts)."""
        return asdict(self)

    def leave_out(self, rejections: Iterable[Rejection]) -> None:
        """Counts skipped records or samples by reason, with the first ones as examples."""
        for rejection in rejections:
            group = self.left_out.setdefault(rejection.reason, LeftOut())
            group.count += 1
            self.bad += not rejection.is_filter
            if len(group.examples) < EXAMPLES:
                names = ("key", "path", "line", "index", "detail")
                group.examples.append({name: getattr(rejection, name) for name in names})
        self.left_out = dict(sorted(self.left_out.items()))

    def count_features(self, samples: Iterable[Any]) -> None:
        """Sets `features` to histograms of the features of samples (`SampleMaker.features`)."""
        values: dict[str, list[float | str]] = defaultdict(list)
        for features in samples:
            for name, found in features.items():
                values[name].extend(found)
        self.features = {name: histogram(found) for name, found in values.items() if found}


@dataclass(slots=True)
class LeftOut:
    """Records or samples that are skipped for one reason."""

    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    """First skipped ones: key, path, line or index in the file, and detail."""


@dataclass(frozen=True, slots=True)
class DataFlag:
    """A warning about `count` of `of` records or samples, which are still used; the run does not stop for it."""

    name: str
    count: int
    of: int
    said: str
    """Message that follows "3 of 20 "."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """First flagged records: number in the file (`index`), `key` and sometimes `detail`."""

    def __str__(self) -> str:
        return f"{self.count} of {self.of} {self.said}"

    @property
    def named(self) -> str:
        """The examples on one line."""
        more = ", …" if self.count > len(self.examples) else ""
        return ", ".join(f"record {one['index']} ({one['key']})" for one in self.examples) + more


def flag_records(name: str, found: Iterable[dict[str, Any]], of: int, said: str) -> Iterable[DataFlag]:
    """Yields a flag for the given records, with the first ones as examples; yields no flag without records.

    Args:
        name: Name of the flag.
        found: Records with the property: `index`, `key` and optionally `detail`.
        of: Number of all records.
        said: Message that follows "3 of 20 ".
    """
    found = list(found)
    if found:
        yield DataFlag(name, len(found), of, said, list(islice(found, EXAMPLES)))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Count, sum, percentiles and max of values. Percentiles are existing values (nearest rank)."""

    count: int
    total: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Labels and counts of bars: numbers in ascending order, texts by frequency."""

    labels: list[str]
    counts: list[int]


def distribution(values: Sequence[float]) -> Distribution | None:
    """Returns count, sum, percentiles and max of the values; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
    return Distribution(len(ordered), sum(ordered), p50, p95, ordered[-1])


def histogram(values: Sequence[float | str]) -> Histogram:
    """Returns a histogram of numbers or texts with at most `BARS` bars.

    A few different numbers get one bar each, others get bars of equal width. Rare texts share one bar.
    """
    words = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if not isinstance(value, str)]
    if words:
        common = Counter(words).most_common()
        shown, rest = (common, []) if len(common) <= BARS else (common[: BARS - 1], common[BARS - 1 :])
        bars = [*shown, *([(f"{len(rest)} others", sum(count for _, count in rest))] if rest else [])]
    elif len(set(numbers)) <= BARS:
        bars = [(format_number(value), count) for value, count in sorted(Counter(numbers).items())]
    else:
        bars = binned(numbers)
    return Histogram([label for label, _ in bars], [count for _, count in bars])


def binned(numbers: Sequence[float]) -> list[tuple[str, int]]:
    """Returns (label, count) of bars of equal width; bars of integers start and end at integers."""
    low, high = min(numbers), max(numbers)
    whole = all(float(number).is_integer() for number in numbers)
    width = math.ceil((high - low + 1) / BARS) if whole else (high - low) / BARS
    places = Counter(min(BARS - 1, int((number - low) / width)) for number in numbers)
    bars = []
    for place in range(max(places) + 1):
        first, last = low + place * width, low + (place + 1) * width - whole
        ends = dict.fromkeys((format_number(first), format_number(min(last, high))))
        bars.append(("–".join(ends), places[place]))
    return bars


def format_number(number: float) -> str:
    """Formats a number: integers in full, others with four significant digits."""
    return str(int(number)) if float(number).is_integer() else f"{number:.4g}"
