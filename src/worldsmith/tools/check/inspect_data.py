"""Inspects a dataset as a run reads it, collects the result in a `DataReport`, and formats it as plain text."""

from __future__ import annotations

import itertools
import json
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from worldsmith.actions.pool_action import RayAction
from worldsmith.actions.processes import FailedItem
from worldsmith.actions.ray_processes import is_ray, map_on_ray
from worldsmith.data.data_report import EXAMPLES, DataReport, Distribution, Histogram, distribution, format_number
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.loader import PACKERS, PackingDataLoader
from worldsmith.data.stream.positions import Positions
from worldsmith.data.stream.quarantine import Rejection, Tally
from worldsmith.data.stream.sample_maker import Features, SampleMaker, SampleResult, short_hash
from worldsmith.data.stream.workers import fetch

AHEAD = 4
"""Number of samples that each worker prefetches."""
INDENT = " " * 13
FILLED_UP = "the last pack is filled with samples of the next epoch"
BAR, LONGEST = "█", 32
"""Character that forms the bars of a histogram, and max length of a bar in characters."""
RANKS = 8
"""Max number of ranks that get a line of their own in the report if their numbers of packs differ."""


def read_data(
    loader: PackingDataLoader,
    tally: Tally,
    *,
    workers: int,
    place: RayAction.Config,
    ranks: int,
    packs_a_step: int,
    sample: int | None = None,
    decode: bool = True,
    examples: int = EXAMPLES,
    cap_field: str = "",
    show_progress: Callable[[int, int], None] | None = None,
) -> DataReport:
    """Reads the samples of the first epoch as the run would and reports on them.

    Args:
        loader: The data loader of the run, created with `tally` as its quarantine (`loader.quarantine`).
        tally: Quarantine of `loader`: list of the skipped samples with the reasons, filled by this function.
        workers: Number of worker processes.
        place: Where they run: on this machine or on Ray.
        ranks: Number of data-parallel ranks, among which the epoch is divided.
        packs_a_step: Number of packs (forward passes, each over several samples) of a rank per optimizer step.
        sample: Number of samples to inspect, evenly spaced; None: all.
        decode: Decode images and videos; False: read only headers, which are enough for tokens and sizes.
        examples: Max number of skipped samples per reason that are listed.
        cap_field: Name of the setting of the max tokens per sample, for messages; "": the field of the data loader.
        show_progress: Called with (inspected, total) after each sample.

    Returns:
        Counts, distributions and packs of the data. A DataError while reading becomes one of its problems.
    """
    dataset, config = loader.dataset, loader.config
    loader.maker.decodes = decode
    report = DataReport.of_dataset(dataset, config.sample_cap)
    report.decoded, report.packer = decode, config.packer
    report.cap_field = cap_field or f"{tally.section}.{config.sample_cap_field}"
    report.cap_included = config.sample_cap_field != "max_sequence_length"
    total = len(dataset)
    chosen = range(total) if sample is None or sample >= total else [i * total // sample for i in range(sample)]
    seen: list[InspectedSample] = []
    try:
        seen.extend(inspect_samples(loader, chosen, workers, place, show_progress))
    except DataError as error:
        report.problems.append(str(error))
    report.looked_at = len(seen)
    report.left_out, report.bad = {}, 0
    report.leave_out(tally.rejections, examples)
    kept = [item for item in seen if item.rejection is None]
    report.kept = len(kept)
    notes = [(name, words) for item in seen for name, words in item.notes.items()]
    report.notes = dict(sorted((Counter(name for name, _ in notes) + loader.counts).items()))
    told = {name: [words for other, words in notes if other == name and words] for name in report.notes}
    report.said = {name: words[:EXAMPLES] for name, words in told.items() if words}
    tokens = [item.num_tokens for item in seen if item.num_tokens >= 0]
    report.tokens = distribution(tokens)
    if report.cap is not None and tokens and max(tokens) >= report.cap:
        report.over_cap, report.needed_cap = sum(count >= report.cap for count in tokens), max(tokens) + 1
    report.seconds = distribution([item.seconds for item in seen]) if decode else None
    report.count_features(item.features for item in kept)
    report.duplicates = find_duplicates(dataset.contents)
    share = len(seen) / max(1, total)
    report.cells = round(sum(item.cells for item in kept) / share) if seen else 0
    count_packs(report, loader, kept, ranks, packs_a_step, share)
    loader.check_quarantine()
    report.problems += find_problems(report, loader, tally, seen)
    return report


@dataclass(frozen=True, slots=True)
class InspectedSample:
    """Inspection result of one sample: tokens, reading time, features, and the reason if it was skipped."""

    key: str
    position: int
    num_tokens: int
    """Number of tokens of the sample; -1 if the sample was skipped before its tokens were counted."""
    seconds: float
    rejection: Rejection | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    """Counters of the data loader that this sample increments: counter name -> message about the sample."""
    features: Features = field(default_factory=dict)
    cells: int = 0
    """Number of latent positions (t·h·w) of the sample; 0 without latents."""


class Inspector(SampleMaker[InspectedSample]):
    """Sample builder for worker processes: builds samples as the run would and returns only inspection results.

    Images and videos are discarded in the worker.
    """

    def __init__(self, maker: SampleMaker[Any]) -> None:
        self.maker, self.dataset = maker, maker.dataset
        self.max_tokens = None  # the wrapped maker checks the cap

    def make(self, position: int) -> SampleResult[InspectedSample]:
        """Builds the sample at a position of the dataset and returns its inspection result, also if it is skipped."""
        self.maker.measured = None
        start = time.perf_counter()
        made = self.maker[position]
        seconds, item = time.perf_counter() - start, made.item
        if isinstance(item, Rejection):
            tokens = -1 if self.maker.measured is None else self.maker.measured
            return SampleResult(InspectedSample(item.key, position, tokens, seconds, item, made.notes))
        told = self.maker.features(item), self.maker.cells(item)
        return SampleResult(InspectedSample(item.key, position, item.num_tokens, seconds, None, made.notes, *told))

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        return self.maker.reject(position, reason, detail)


def inspect_samples(
    loader: PackingDataLoader,
    positions: Sequence[int],
    workers: int,
    place: RayAction.Config,
    show_progress: Callable[[int, int], None] | None = None,
) -> Iterator[InspectedSample]:
    """Yields the inspection results of the samples at `positions` of the dataset, in order.

    Skipped samples are added to `loader.quarantine`; workers that died are counted in `loader.counts`. `show_progress`
    is called with (inspected, total) after each sample. `workers` and `place` are as in `read_data`.
    """
    inspector = Inspector(loader.maker)
    if is_ray(place.on):
        found = fetch_on_ray(place, workers, inspector, positions)
    else:
        stretch = Positions(list(positions), 0, 1, 0)
        found = fetch(inspector, stretch, workers=workers, prefetch=AHEAD, counts=loader.counts)
    for number, (position, made) in enumerate(zip(positions, found), start=1):
        item = made.item
        if isinstance(item, Rejection):  # the worker died
            item = InspectedSample(item.key, position, -1, 0.0, rejection=item)
        if item.rejection is not None:
            loader.quarantine.add(item.rejection)
        if show_progress is not None:
            show_progress(number, len(positions))
        yield item


def fetch_on_ray(
    place: RayAction.Config, workers: int, inspector: Inspector, positions: Sequence[int]
) -> Iterator[SampleResult[InspectedSample]]:
    """Yields the inspection results of the samples at `positions` of the dataset, in order, from processes on Ray.

    Ray is connected. Samples that end their processes, or exceed the time limit of `place`, are skipped as "failed".
    Other errors, which would stop the run, are raised.
    """
    results, following = dict[int, SampleResult[InspectedSample]](), 0
    make, items = partial(partial, inspect_item, inspector), list(enumerate(positions))
    for found in map_on_ray(make, items, workers, timeout=place.record_timeout, needs_gpu=False):
        if isinstance(found, FailedItem):
            number, position = found.item
            results[number] = SampleResult(inspector.reject(position, "failed", found.reason))
        elif isinstance(found, Exception):
            raise found
        else:
            results |= found
        while following in results:
            yield results.pop(following)
            following += 1


def inspect_item(inspector: Inspector, item: tuple[int, int]) -> dict[int, SampleResult[InspectedSample]] | Exception:
    """Returns {number: inspection result} of an item (number, position of a sample in the dataset), or the error."""
    try:
        return {item[0]: inspector[item[1]]}
    except Exception as error:
        return error


def find_problems(
    report: DataReport, loader: PackingDataLoader, tally: Tally, seen: Sequence[InspectedSample]
) -> list[str]:
    """Returns the problems that would prevent the run from starting or stop it, such as no usable sample.

    Args:
        report: Report on the data.
        loader: The data loader of the run.
        tally: Skipped samples; `tally.refusal` is the error message if they would stop the run, else None.
        seen: Inspection results of all inspected samples.
    """
    found = [] if tally.refusal is None else [tally.refusal]
    if report.kept or report.problems:
        return found
    over = [item.num_tokens for item in seen if item.rejection and item.rejection.reason == "over_token_cap"]
    if over and len(over) == len(seen):
        fits = "may be used" if report.cap_included else "fits into a pack"
        least = f"the smallest of {len(over)} samples has {min(over)} tokens, so none {fits}"
        found.append(f"{least}: {larger_cap(report)}")
    else:
        part = report.looked_at < report.positions
        which = f"none of the {report.looked_at} inspected samples" if part else "no sample"
        what = f"{which} of {report.dataset} can be used ({tally.describe()})"
        found.append(f"{what}. {loader.dataset.limits}".strip())
    return found


def larger_cap(report: DataReport) -> str:
    """Returns the advice, for messages, to increase the max tokens per sample so that all samples can be used."""
    least, now = (report.needed_cap or 0) - report.cap_included, (report.cap or 0) - report.cap_included
    return f"set {report.cap_field} to at least {least} (now {now}) to use all samples, or use smaller or shorter clips"


def count_packs(
    report: DataReport,
    loader: PackingDataLoader,
    kept: Sequence[InspectedSample],
    ranks: int,
    packs_a_step: int,
    share: float,
) -> None:
    """Packs the samples of each rank with the packer of the run and, for comparison, with "sequential" and "pool".

    Sets the packs (packed batches), steps and fill ratios of `report`.

    Args:
        report: Report on the data, which is changed in place.
        loader: The data loader of the run, with the settings of the packer.
        kept: Inspection results of the usable samples.
        ranks: Number of data-parallel ranks.
        packs_a_step: Number of packs (forward passes, each over several samples) of a rank per optimizer step.
        share: Fraction of the samples that was inspected, from which counts are extrapolated.
    """
    config = loader.config
    shares = tokens_by_rank(kept, ranks)
    for name in dict.fromkeys([config.packer, "sequential", "pool"]):
        if config.max_sequence_length is None and name != config.packer:
            continue
        packs = [pack_all(name, config, tokens) for tokens in shares]
        if name == config.packer:
            report.packs = [round(len(own) / share) if share else 0 for own in packs]
            report.steps = [len(own) / share / packs_a_step if share else 0.0 for own in packs]
            report.later_steps = [packs_when_full(own) / share / packs_a_step if share else 0.0 for own in packs]
            if min(report.steps) < 1:
                report.ranks_that_work = find_max_ranks(config, kept, ranks, packs_a_step * share)
        full = [sum(pack) for own in packs for pack in (own[:-1] or own)]
        if full and config.max_sequence_length is not None:
            report.fill[name] = sum(full) / (len(full) * config.max_sequence_length)


def packs_when_full(packs: Sequence[Sequence[int]]) -> float:
    """Returns the number of packs as a float; the last pack, which is often not full, counts as a fraction.

    The fraction is the number of samples in the last pack, divided by the mean number of samples in the other packs.
    `packs` contains, for each pack, the token counts of its samples.
    """
    full = sum(map(len, packs[:-1]))
    return sum(map(len, packs)) / full * (len(packs) - 1) if full else float(len(packs))


def tokens_by_rank(kept: Sequence[InspectedSample], ranks: int) -> list[list[int]]:
    """Returns, for each of `ranks` ranks, the token counts of the samples in `kept` that the rank reads in an epoch."""
    return [[item.num_tokens for item in kept if item.position % ranks == rank] for rank in range(ranks)]


def find_max_ranks(config: PackingDataLoader.Config, kept: Sequence[InspectedSample], below: int, packs: float) -> int:
    """Returns the max number of ranks, less than `below`, at which each rank has enough packed batches in an epoch.

    Enough are `packs` packed batches. 0 if even a single rank would have fewer.
    """
    for ranks in range(below - 1, 0, -1):
        if all(len(pack_all(config.packer, config, own)) >= packs for own in tokens_by_rank(kept, ranks)):
            return ranks
    return 0


def pack_all(name: str, config: PackingDataLoader.Config, tokens: Sequence[int]) -> list[list[int]]:
    """Packs samples with the given token counts; returns the token counts of the samples in each packed batch.

    `name` is the packer; its settings are those of `config`.
    """
    packer = PACKERS[name](
        int,
        max_sequence_length=config.max_sequence_length,
        max_samples_per_batch=config.max_samples_per_batch,
        lookahead=config.lookahead,
    )
    source = iter(tokens)
    return list(itertools.takewhile(bool, (packer.pack(source) for _ in itertools.count())))


def find_duplicates(contents: Callable[[], Iterable[tuple[str, Any]]]) -> list[list[str]]:
    """Returns the groups of keys whose samples have equal content; does not keep the contents of other samples.

    Args:
        contents: Yields (key, content) of each sample; called twice.
    """
    import numpy as np

    hashes, counts = np.unique(
        np.fromiter((short_hash(json.dumps(facts)) for _, facts in contents()), np.uint64), return_counts=True
    )
    repeated = set(hashes[counts > 1].tolist())
    groups: dict[str, list[str]] = defaultdict(list)
    for key, facts in contents() if repeated else ():
        text = json.dumps(facts)
        if short_hash(text) in repeated:
            groups[text].append(key)
    return [keys for keys in groups.values() if len(keys) > 1]


def report_lines(report: DataReport, *, width: int, workers: int) -> Iterator[str]:
    """Yields the report as lines of at most `width` columns, except for file names and the table of the actions.

    Args:
        report: The report on one split.
        width: Number of columns.
        workers: Number of worker processes, for the estimated samples per second.
    """
    yield labeled_line("data", report.dataset)
    looked = "all of them" if report.looked_at >= report.positions else f"{report.looked_at} of them, evenly spaced,"
    how = "decoded as in training" if report.decoded else "inspected by their headers only"
    if report.kept is None:
        looked, how = "none", "was read"
    held = f"{counted(report.records, 'record')}, {counted(report.positions, 'sample')} in an epoch; {looked} {how}"
    yield from wrap_labeled("", held, width)
    skipped = str(sum(group.count for group in report.left_out.values()))
    if report.kept is not None:
        yield from wrap_labeled("kept", f"{report.kept} of {counted(report.looked_at, 'sample')}", width)
        samples = report.looked_at - report.kept
        if samples < int(skipped):
            skipped += f": {counted(samples, 'sample')}; {int(skipped) - samples} of the records, before sampling"
    yield from wrap_labeled("skipped", skipped, width)
    names = max([len(name) for name in report.left_out], default=0)
    for name, group in report.left_out.items():
        first = group.examples[0]
        why = f"{first['key']}: {first['detail']}"
        start = f"  {name:<{names}} {group.count:>7}  "
        yield start + clip(why, width - len(start))
    for flag in report.flags:
        yield from wrap_labeled("noted", f"{flag}", width)
        if flag.count < flag.of:
            yield labeled_line("", clip(flag.named, width - len(INDENT)))
    if report.channels:
        size = max(map(len, report.channels))
        yield labeled_line("actions", " " * size + "".join(f"{name:>11}" for name in ("min", "1 %", "99 %", "max")))
        for name, values in report.channels.items():
            yield labeled_line("", f"{name:<{size}}" + "".join(f"{value:>11.4g}" for value in values.values()))
    for name, count in report.notes.items():
        said, *further = report.said.get(name, [""])
        yield labeled_line("noted", clip(f"{name} {count}{': ' if said else ''}{said}", width - len(INDENT)))
        yield from (labeled_line("", clip(more, width - len(INDENT))) for more in further)
    if report.duplicates:
        again = sum(len(keys) - 1 for keys in report.duplicates)
        said = f"{counted(again, 'sample')} identical to another one, such as {' = '.join(report.duplicates[0])}"
        yield labeled_line("duplicates", clip(said, width - len(INDENT)))
    if report.tokens is not None:
        cap = f"; the token limit of a pack, which holds several samples, is {report.cap}" if report.cap else ""
        if report.cap and report.cap_included:
            cap = f"; the limit is {report.cap - 1}"
        if report.over_cap:
            over = "exceed" if report.cap_included else "do not stay below"
            cap += f", which {report.over_cap} of them ({report.over_cap / report.tokens.count:.1%}) {over}"
        yield from wrap_labeled("tokens", f"{format_percentiles(report.tokens)}{cap}", width)
    if alike := [f"{name} {bars.labels[0]}" for name, bars in report.features.items() if len(bars.labels) == 1]:
        yield from wrap_labeled("all alike", ", ".join(alike), width)
    for name, bars in report.features.items():
        if len(bars.labels) > 1:
            yield from histogram_lines(name, bars, width)
    if report.seconds is not None and report.seconds.total > 0:
        rate = report.seconds.count / report.seconds.total
        times = f"p50 {report.seconds.p50:.2g} s, p95 {report.seconds.p95:.2g} s"
        times = f"reading one sample takes {1 / rate:.2g} s on average ({times})"
        speed = f"{rate * max(1, workers):.3g} samples/s with {counted(workers, 'worker')}"
        yield from wrap_labeled("time", f"{times}; {speed}", width)
    yield from packing_lines(report, width)


def packing_lines(report: DataReport, width: int) -> Iterator[str]:
    """Yields the lines of the report about packs and steps of an epoch, of at most `width` columns."""
    if report.fill:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report.fill.items())
        told = f"fill ratio (fraction of the token limit) by packer: {shares} (this run uses {report.packer})"
        yield from wrap_labeled("packs", told, width)
    about = "" if report.looked_at >= report.positions else "about "
    kinds = sorted(set(zip(report.packs, report.steps)), reverse=True)
    if len(kinds) == 1 and len(report.packs) > 1:
        yield from wrap_labeled(
            "an epoch", f"on each of {len(report.packs)} processes {about}{format_epoch(*kinds[0])}", width
        )
        yield from wrap_labeled("", f"{FILLED_UP}{later_epochs(report)}", width)
        return
    for rank, both in list(enumerate(zip(report.packs, report.steps)))[:RANKS]:
        place = f"on process {rank} " if len(report.packs) > 1 else ""
        yield from wrap_labeled("" if rank else "an epoch", f"{place}{about}{format_epoch(*both)}", width)
    if len(report.packs) > RANKS:
        rest = report.packs[RANKS:]
        yield from wrap_labeled(
            "", f"on {len(rest)} other processes {about}{min(rest)} to {max(rest)} packs each", width
        )
    if report.packs:
        yield from wrap_labeled("", f"{FILLED_UP}{later_epochs(report)}", width)


def later_epochs(report: DataReport) -> str:
    """Returns a note on the mean steps per epoch of a long run if they are fewer than in the first epoch; else ""."""
    first, later = max(report.steps), max(report.later_steps, default=0.0)
    return f": over a long run, about {later:.3g} steps per epoch" if 0 < later < 0.95 * first else ""


def format_epoch(packs: int, steps: float) -> str:
    return f"{counted(packs, 'pack')}, {format_number(steps)} step{'s' * (steps != 1)}"


def histogram_lines(name: str, bars: Histogram, width: int) -> Iterator[str]:
    """Yields the lines of a horizontal bar chart of a histogram: the title `name`, then one line per bar."""
    yield labeled_line("", name)
    labels, counts = max(map(len, bars.labels)), max(len(str(count)) for count in bars.counts)
    room = max(4, min(LONGEST, width - len(INDENT) - labels - counts - 4))
    for label, count in zip(bars.labels, bars.counts):
        bar = BAR * max(count > 0, round(room * count / max(bars.counts)))
        yield f"{INDENT}{label:>{labels}}  {count:>{counts}}  {bar}".rstrip()


def format_percentiles(values: Distribution) -> str:
    """Returns the median, the 95th percentile and the maximum as text."""
    p50, p95, largest = (format_number(value) for value in (values.p50, values.p95, values.max))
    return f"p50 {p50}, p95 {p95}, max {largest}"


def wrap_labeled(label: str, message: str, width: int) -> list[str]:
    """Returns a message as lines of at most `width` columns; the first line begins with `label`."""
    return textwrap.wrap(
        message, width, initial_indent=f"{label:<13}", subsequent_indent=INDENT, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def labeled_line(label: str, text: str) -> str:
    """Returns one output line: `label`, padded to the width of the label column, and `text`."""
    return f"{label:<13}{text}"


def counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def clip(text: str, width: int) -> str:
    """Returns a text as one line of at most `width` characters; a longer one ends with an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: max(1, width - 2)] + " …"
