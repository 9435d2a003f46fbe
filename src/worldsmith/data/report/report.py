"""`DataReport`: what a data set holds, what a run would leave out of it, and what a pass over it takes."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from worldsmith.data.report.flag import EXAMPLES, Flag
from worldsmith.data.report.inspector import Seen, Tally, inspect
from worldsmith.data.report.numbers import Histogram, Spread, histogram, spread
from worldsmith.data.stream.dataset_record import digest
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.loader import PACKERS, PackingDataLoader
from worldsmith.data.stream.maker import StreamDataset
from worldsmith.data.stream.quarantine import Rejection


@dataclass(slots=True)
class LeftOut:
    """The samples, or records, that are left out for one reason."""

    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Key, path, line or index in the file, and detail of the first ones."""


@dataclass(slots=True)
class DataReport:
    """Counts are those of a run over the same data; what was not measured is None or empty."""

    dataset: str
    records: int
    samples: int
    """That all passes together can give, as far as the file of records tells."""
    positions: int
    """Samples of a pass, as far as the file tells."""
    looked_at: int = 0
    """Samples of the first pass that were opened or read."""
    decoded: bool = False
    """Whether these were read as for training, and not only opened."""
    kept: int | None = None
    """Samples among them that are trained on; None where they were not read."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """By reason: what the file of records rules out, and those among the samples that were looked at."""
    bad: int = 0
    """Of what is left out, broken samples, which count against the limit of the run."""
    notes: dict[str, int] = field(default_factory=dict)
    """What a run counts of the samples that it loads."""
    said: dict[str, list[str]] = field(default_factory=dict)
    """What it says of the first ones, by the same names."""
    flags: list[Flag] = field(default_factory=list)
    """What the records tell before a sample is read."""
    cap: int | None = None
    """Tokens that a sample stays below: the cap of its pack, or a smaller one of its own."""
    cap_field: str = ""
    """The field that says so, as the user wrote it."""
    cap_included: bool = False
    """Whether that field is the most tokens of a sample, itself allowed; False: it is the cap."""
    over_cap: int = 0
    """Samples that were looked at and do not."""
    needed_cap: int | None = None
    """The least cap that all samples that were looked at stay below, where this one is too small."""
    tokens: Spread | None = None
    """Of samples, those above the cap included."""
    features: dict[str, Histogram] = field(default_factory=dict)
    seconds: Spread | None = None
    """That one process takes for a sample."""
    packer: str = ""
    fill: dict[str, float] = field(default_factory=dict)
    """By packer: tokens in all packs of the first pass but the last of each process, as a share of the cap."""
    packs: list[int] = field(default_factory=list)
    """Of the first pass, by process; for a part of the data an estimate."""
    steps: list[float] = field(default_factory=list)
    """The same in optimizer steps."""
    ranks_that_work: int | None = None
    """The most processes of which each does a step in a pass, where not all do; 0 = not even one alone."""
    cells: int = 0
    """Of latents, of all samples of the first pass that are trained on; for a part of the data an estimate."""
    duplicates: list[list[str]] = field(default_factory=list)
    """Keys of samples that show and say the same."""
    problems: list[str] = field(default_factory=list)
    """Why a run could not start, or would stop in its first pass."""

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def leave_out(self, rejections: Iterable[Rejection]) -> None:
        for rejection in rejections:
            group = self.left_out.setdefault(rejection.reason, LeftOut())
            group.count += 1
            self.bad += not rejection.is_filter
            if len(group.examples) < EXAMPLES:
                names = ("key", "path", "line", "index", "detail")
                group.examples.append({name: getattr(rejection, name) for name in names})
        self.left_out = dict(sorted(self.left_out.items()))

    def count_features(self, samples: Iterable[Any]) -> None:
        """Makes histograms of the features of these samples."""
        values: dict[str, list[float | str]] = defaultdict(list)
        for features in samples:
            for name, found in features.items():
                values[name].extend(found)
        self.features = {name: histogram(found) for name, found in values.items() if found}


def read_data(
    loader: PackingDataLoader,
    tally: Tally,
    *,
    contents: Iterable[tuple[str, Any]],
    workers: int,
    ranks: int,
    packs_a_step: int,
    sample: int | None = None,
    decode: bool = True,
    cap_field: str = "",
    shown: Callable[[int, int], None] | None = None,
) -> DataReport:
    """Reads the first pass of a loader whose quarantine is `tally`, or `sample` of it, evenly chosen.

    `contents`: see `Task.contents`. The pass is shared by `ranks`, each of which does `packs_a_step` packs in a step.
    Without `decode` headers alone are read, which tell tokens and sizes. `cap_field` is that of the report,
    where another field than the loader's sets the cap.
    """
    dataset, config = loader.dataset, loader.config
    loader.maker.decodes = decode
    report = start_report(loader)
    report.decoded, report.packer = decode, config.packer
    report.cap_field = cap_field or f"{tally.section}.{config.sample_cap_field}"
    report.cap_included = config.sample_cap_field != "max_sequence_length"
    total = len(dataset)
    chosen = range(total) if sample is None or sample >= total else [i * total // sample for i in range(sample)]
    seen: list[Seen] = []
    try:
        seen.extend(inspect(loader, chosen, workers=workers, shown=shown))
    except DataError as error:
        report.problems.append(str(error))
    report.looked_at = len(seen)
    report.left_out, report.bad = {}, 0
    report.leave_out(tally.rejections)
    kept = [item for item in seen if item.rejection is None]
    report.kept = len(kept)
    notes = [(name, words) for item in seen for name, words in item.notes.items()]
    report.notes = dict(sorted((Counter(name for name, _ in notes) + loader.counts).items()))
    told = {name: [words for other, words in notes if other == name and words] for name in report.notes}
    report.said = {name: words[:EXAMPLES] for name, words in told.items() if words}
    tokens = [item.num_tokens for item in seen if item.num_tokens >= 0]
    report.tokens = spread(tokens)
    if report.cap is not None and tokens and max(tokens) >= report.cap:
        report.over_cap, report.needed_cap = sum(count >= report.cap for count in tokens), max(tokens) + 1
    report.seconds = spread([item.seconds for item in seen]) if decode else None
    report.count_features(item.features for item in kept)
    report.duplicates = repeated(contents)
    share = len(seen) / max(1, total)
    report.cells = round(sum(item.cells for item in kept) / share) if seen else 0
    count_packs(report, loader, kept, ranks, packs_a_step, share)
    loader.check_quarantine()
    report.problems += refusals(report, loader, tally, seen)
    return report


def start_report(loader: PackingDataLoader) -> DataReport:
    """What is known before a sample is opened."""
    return report_of(loader.dataset, loader.config.sample_cap)


def report_of(dataset: StreamDataset, cap: int | None) -> DataReport:
    """The same of a data set without a loader."""
    report = DataReport(dataset.name, dataset.num_records, dataset.num_samples, len(dataset), cap=cap)
    report.leave_out(dataset.rejections)
    return report


def refusals(report: DataReport, loader: PackingDataLoader, tally: Tally, seen: Sequence[Seen]) -> list[str]:
    """Why a run over such data could not start, or would stop."""
    found = [] if tally.refusal is None else [tally.refusal]
    if report.kept or report.problems:
        return found
    over = [item.num_tokens for item in seen if item.rejection and item.rejection.reason == "over_token_cap"]
    if over and len(over) == len(seen):
        fits = "may be used" if report.cap_included else "fits into a pack"
        least = f"the smallest of {len(over)} samples has {min(over)} tokens, and none {fits}"
        found.append(f"{least}: {larger_cap(report)}")
    else:
        part = report.looked_at < report.positions
        which = f"none of the {report.looked_at} samples that were looked at" if part else "no sample"
        what = f"{which} of {report.dataset} can be used ({tally.describe()})"
        found.append(f"{what}. {loader.dataset.limits}".strip())
    return found


def larger_cap(report: DataReport) -> str:
    """What to do where samples are too long."""
    least, now = (report.needed_cap or 0) - report.cap_included, (report.cap or 0) - report.cap_included
    return f"set {report.cap_field} to at least {least} (now {now}) for all of them, or use smaller or shorter ones"


def count_packs(
    report: DataReport, loader: PackingDataLoader, kept: Sequence[Seen], ranks: int, packs_a_step: int, share: float
) -> None:
    """Packs the samples of each rank, by the packer of the run and, for their fill, by the others."""
    config = loader.config
    shares = dealt(kept, ranks)
    for name in dict.fromkeys([config.packer, "sequential", "pool"]):
        if config.max_sequence_length is None and name != config.packer:
            continue
        packs = [pack_all(name, config, tokens) for tokens in shares]
        if name == config.packer:
            report.packs = [round(len(own) / share) if share else 0 for own in packs]
            report.steps = [len(own) / share / packs_a_step if share else 0.0 for own in packs]
            if min(report.steps) < 1:
                report.ranks_that_work = most_ranks(config, kept, ranks, packs_a_step * share)
        full = [sum(pack) for own in packs for pack in (own[:-1] or own)]
        if full and config.max_sequence_length is not None:
            report.fill[name] = sum(full) / (len(full) * config.max_sequence_length)


def dealt(kept: Sequence[Seen], ranks: int) -> list[list[int]]:
    """The tokens of the samples that each rank gets."""
    return [[item.num_tokens for item in kept if item.position % ranks == rank] for rank in range(ranks)]


def most_ranks(config: PackingDataLoader.Config, kept: Sequence[Seen], below: int, packs: float) -> int:
    """The most processes, fewer than `below`, of which a pass gives so many packs to each; 0 = not even to one."""
    for ranks in range(below - 1, 0, -1):
        if all(len(pack_all(config.packer, config, own)) >= packs for own in dealt(kept, ranks)):
            return ranks
    return 0


def pack_all(name: str, config: PackingDataLoader.Config, tokens: Sequence[int]) -> list[list[int]]:
    packer = PACKERS[name](
        int,
        max_sequence_length=config.max_sequence_length,
        max_samples_per_batch=config.max_samples_per_batch,
        lookahead=config.lookahead,
    )
    source = iter(tokens)
    return list(itertools.takewhile(bool, (packer.pack(source) for _ in itertools.count())))


def repeated(contents: Iterable[tuple[str, Any]]) -> list[list[str]]:
    """The keys of samples that hold the same, in groups."""
    groups: dict[str, list[str]] = defaultdict(list)
    for key, facts in contents:
        groups[digest(facts)].append(key)
    return [keys for keys in groups.values() if len(keys) > 1]
