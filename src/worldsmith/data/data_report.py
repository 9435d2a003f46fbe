"""The result of inspecting a dataset: counts, distributions, skipped samples and problems."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import StreamDataset

EXAMPLES = 5
"""Max number of example records or samples per reason or warning."""
BARS = 8
"""Max number of bars of a histogram."""


@dataclass(slots=True)
class DataReport:
    """Result of inspecting a dataset before a run; numbers of samples and packs (batches) equal those of the run.

    Values that were not measured are None or empty.
    """

    dataset: str
    """Name of the dataset in messages: a file or a folder."""
    records: int
    """Number of records of the dataset file, including invalid ones."""
    samples: int
    """Number of different samples in all epochs, including samples that will be rejected when they are read."""
    positions: int
    """Number of samples of an epoch, including samples that will be rejected when they are read."""
    looked_at: int = 0
    """Number of inspected samples of the first epoch."""
    decoded: bool = False
    """Whether the inspected samples were decoded as in training; False: only headers were read."""
    kept: int | None = None
    """Number of inspected samples that a run would train on; None if no sample was inspected."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """Skipped records of the dataset file and skipped samples among the inspected ones, by reason."""
    bad: int = 0
    """Number of skipped records and samples that are broken, not only outside the configured limits; a run stops if
    there are too many."""
    notes: dict[str, int] = field(default_factory=dict)
    """Counters of the data loader for the inspected samples."""
    said: dict[str, list[str]] = field(default_factory=dict)
    """First log messages for each counter in `notes`."""
    flags: list[DataFlag] = field(default_factory=list)
    """Warnings about the records, found before any sample is read."""
    channels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Min, 1st and 99th percentile (q01, q99) and max of each channel of the actions of robots."""
    cap: int | None = None
    """Exclusive token limit of a sample: that of a pack, or a smaller limit for samples."""
    cap_field: str = ""
    """Name of the setting with the token limit, as the user wrote it."""
    cap_included: bool = False
    """Whether the setting `cap_field` is inclusive (the max number of tokens of a sample); False: exclusive."""
    over_cap: int = 0
    """Number of inspected samples that reach the token limit."""
    needed_cap: int | None = None
    """Smallest token limit that no inspected sample reaches, if the current limit is too small."""
    tokens: Distribution | None = None
    """Tokens per sample, including samples above the token limit."""
    features: dict[str, Histogram] = field(default_factory=dict)
    """Histograms of the properties of the samples, such as their sizes and frame rates."""
    seconds: Distribution | None = None
    """Seconds to read a sample in one process."""
    packer: str = ""
    """Packer of the config."""
    fill: dict[str, float] = field(default_factory=dict)
    """Mean fraction of the token limit that the packs of the first epoch use, by packer name; the last pack of each
    rank is not included."""
    packs: list[int] = field(default_factory=list)
    """Number of packs of each rank in the first epoch; an estimate if not all samples were inspected."""
    steps: list[float] = field(default_factory=list)
    """Number of optimizer steps of each rank in the first epoch."""
    later_steps: list[float] = field(default_factory=list)
    """Average number of optimizer steps of each rank per epoch in a long run, in which the last pack of an epoch is
    filled with samples of the next one."""
    ranks_that_work: int | None = None
    """Max number of ranks that each have a step in an epoch; None if all ranks have one, 0 if no rank can have one."""
    cells: int = 0
    """Number of latent positions (t·h·w) of the trained samples of the first epoch; an estimate if not all samples
    were inspected."""
    duplicates: list[list[str]] = field(default_factory=list)
    """Groups of keys of samples with equal content."""
    problems: list[str] = field(default_factory=list)
    """Problems that would prevent the run from starting or stop it in its first epoch."""

    @classmethod
    def of_dataset(cls, dataset: StreamDataset, cap: int | None) -> DataReport:
        """Returns the report of a dataset before any sample is read: its name, numbers of samples and skipped records.

        Args:
            dataset: Dataset of a data loader.
            cap: Exclusive token limit of a sample; None: no limit.
        """
        report = cls(dataset.name, dataset.num_records, dataset.num_samples, len(dataset), cap=cap)
        report.leave_out(dataset.rejections)
        return report

    def facts(self) -> dict[str, Any]:
        """Returns the fields of the report as a nested dict of JSON values."""
        return asdict(self)

    def leave_out(self, rejections: Iterable[Rejection], examples: int = EXAMPLES) -> None:
        """Counts skipped records or samples in `left_out` by reason, and broken ones also in `bad`.

        The first `examples` ones of each reason are stored with key, path, line, index and detail.
        """
        for rejection in rejections:
            group = self.left_out.setdefault(rejection.reason, LeftOut())
            group.count += 1
            self.bad += not rejection.is_filter
            if len(group.examples) < examples:
                names = ("key", "path", "line", "index", "detail")
                group.examples.append({name: getattr(rejection, name) for name in names})
        self.left_out = dict(sorted(self.left_out.items()))

    def count_features(self, samples: Iterable[Any]) -> None:
        """Sets `features` to one histogram per property; each of `samples` maps property names to lists of values."""
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
    """First skipped records or samples, as dicts with key, path, line, index and detail."""


@dataclass(frozen=True, slots=True)
class DataFlag:
    """Warning about `count` of `of` records or samples, which are used nevertheless."""

    name: str
    """Short name of the type of warning, such as "ids_missing"."""
    count: int
    of: int
    said: str
    """Description of the problem, written after the counts, as in "3 of 20 records have no id"."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """First records with the problem, as dicts with their number in the file (`index`), `key` and possibly `detail`."""

    def __str__(self) -> str:
        return f"{self.count} of {self.of} {self.said}"

    @property
    def named(self) -> str:
        """Numbers and keys of the examples on one line, such as "record 3 (a), record 7 (b)"."""
        more = ", …" if self.count > len(self.examples) else ""
        return ", ".join(f"record {one['index']} ({one['key']})" for one in self.examples) + more


def flag_records(name: str, found: Iterable[dict[str, Any]], of: int, said: str) -> Iterable[DataFlag]:
    """Yields one warning about the records in `found`, with the first ones as examples; none if `found` is empty.

    Args:
        name: Name of the type of warning.
        found: Records with the problem, as dicts with `index`, `key` and optionally `detail`.
        of: Number of all records.
        said: Description of the problem after the counts, such as "records have no id" after "3 of 20 ".
    """
    found = list(found)
    if found:
        yield DataFlag(name, len(found), of, said, list(islice(found, EXAMPLES)))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Count, sum, 50th and 95th percentile (nearest rank) and max of a list of values."""

    count: int
    total: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Labels and counts of the bars of a histogram: numbers in ascending order, strings by frequency."""

    labels: list[str]
    counts: list[int]


def distribution(values: Sequence[float]) -> Distribution | None:
    """Returns count, sum, 50th and 95th percentile and max of the values; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
    return Distribution(len(ordered), sum(ordered), p50, p95, ordered[-1])


def histogram(values: Sequence[float | str]) -> Histogram:
    """Returns a histogram of numbers or strings with at most `BARS` bars.

    Up to `BARS` different numbers get one bar each, more numbers get bars of equal width. If there are more than `BARS`
    different strings, the rarest ones share the last bar.
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
        bars = equal_width_bars(numbers)
    return Histogram([label for label, _ in bars], [count for _, count in bars])


def equal_width_bars(numbers: Sequence[float]) -> list[tuple[str, int]]:
    """Returns (label, count) of histogram bars of equal width; bars of integers have integer ends."""
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
    """Returns a number as text: integers with all digits, others with four significant digits."""
    return str(int(number)) if float(number).is_integer() else f"{number:.4g}"
