"""Formats a `DataReport` as plain text for a terminal or a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from worldsmith.data.data_report import DataReport, Distribution, Histogram, format_number

INDENT = " " * 13
FILLED_UP = "the last pack is filled up with samples of the next epoch"
BAR, LONGEST = "█", 32
"""Character of the bars of a histogram, and max length of a bar."""
RANKS = 8
"""Max number of ranks with a line each, if their packs differ."""


def report_lines(report: DataReport, *, width: int, workers: int) -> Iterator[str]:
    """Yields lines of at most `width` columns, except for file names. `workers`: loader workers of the run."""
    yield titled("data", report.dataset)
    looked = "all of them" if report.looked_at >= report.positions else f"{report.looked_at} of them, evenly spaced,"
    how = "were read as in training" if report.decoded else "were inspected by their headers only"
    if report.kept is None:
        looked, how = "none", "was read"
    held = f"{counted(report.records, 'record')}, {counted(report.positions, 'sample')} in an epoch; {looked} {how}"
    yield from wrapped("", held, width)
    skipped = str(sum(group.count for group in report.left_out.values()))
    if report.kept is not None:
        yield from wrapped("kept", f"{report.kept} of {counted(report.looked_at, 'sample')}", width)
        samples = report.looked_at - report.kept
        if samples < int(skipped):
            skipped += f": {counted(samples, 'sample')}, and {int(skipped) - samples} in the records, before sampling"
    yield from wrapped("left out", skipped, width)
    names = max([len(name) for name in report.left_out], default=0)
    for name, group in report.left_out.items():
        first = group.examples[0]
        why = f"{first['key']}: {first['detail']}"
        start = f"  {name:<{names}} {group.count:>7}  "
        yield start + clip(why, width - len(start))
    for flag in report.flags:
        yield from wrapped("noted", f"{flag}", width)
        if flag.count < flag.of:
            yield titled("", clip(flag.named, width - len(INDENT)))
    for name, count in report.notes.items():
        said, *further = report.said.get(name, [""])
        yield titled("noted", clip(f"{name} {count}{': ' if said else ''}{said}", width - len(INDENT)))
        yield from (titled("", clip(more, width - len(INDENT))) for more in further)
    if report.duplicates:
        again = sum(len(keys) - 1 for keys in report.duplicates)
        said = f"{counted(again, 'sample')} the same as another one, such as {' = '.join(report.duplicates[0])}"
        yield titled("duplicates", clip(said, width - len(INDENT)))
    if report.tokens is not None:
        cap = f"; the cap of a pack, which holds several samples, is {report.cap}" if report.cap else ""
        if report.cap and report.cap_included:
            cap = f"; at most {report.cap - 1} are allowed"
        if report.over_cap:
            over = "have more" if report.cap_included else "do not stay below"
            cap += f", which {report.over_cap} of them ({report.over_cap / report.tokens.count:.1%}) {over}"
        yield from wrapped("tokens", f"{format_percentiles(report.tokens)}{cap}", width)
    alike = [f"{name} {bars.labels[0]}" for name, bars in report.features.items() if len(bars.labels) == 1]
    if alike:
        yield from wrapped("all alike", ", ".join(alike), width)
    for name, bars in report.features.items():
        if len(bars.labels) > 1:
            yield from histogram_lines(name, bars, width)
    if report.seconds is not None and report.seconds.total > 0:
        rate = report.seconds.count / report.seconds.total
        times = f"half take up to {report.seconds.p50:.2g} s, 95 % up to {report.seconds.p95:.2g} s"
        times = f"reading a sample takes {1 / rate:.2g} s on average ({times})"
        speed = f"{rate * max(1, workers):.3g} samples/s with {counted(workers, 'worker')}"
        yield from wrapped("time", f"{times}; {speed}", width)
    yield from packing_lines(report, width)


def packing_lines(report: DataReport, width: int) -> Iterator[str]:
    if report.fill:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report.fill.items())
        told = f"tokens of a pack as a fraction of the cap: {shares} (the run uses {report.packer})"
        yield from wrapped("packs filled", told, width)
    about = "" if report.looked_at >= report.positions else "about "
    kinds = sorted(set(zip(report.packs, report.steps)), reverse=True)
    if len(kinds) == 1 and len(report.packs) > 1:
        yield from wrapped(
            "an epoch", f"on each of {len(report.packs)} processes {about}{format_epoch(*kinds[0])}", width
        )
        yield from wrapped("", f"{FILLED_UP}{later_epochs(report)}", width)
        return
    for rank, both in list(enumerate(zip(report.packs, report.steps)))[:RANKS]:
        place = f"on process {rank} " if len(report.packs) > 1 else ""
        yield from wrapped("" if rank else "an epoch", f"{place}{about}{format_epoch(*both)}", width)
    if len(report.packs) > RANKS:
        rest = report.packs[RANKS:]
        yield from wrapped("", f"on {len(rest)} further ones {about}{min(rest)} to {max(rest)} packs each", width)
    if report.packs:
        yield from wrapped("", f"{FILLED_UP}{later_epochs(report)}", width)


def later_epochs(report: DataReport) -> str:
    """Steps of an epoch over a long run, if clearly less than those of the first epoch."""
    first, later = max(report.steps), max(report.later_steps, default=0.0)
    return f": over a long run, an epoch is about {later:.3g} steps" if 0 < later < 0.95 * first else ""


def format_epoch(packs: int, steps: float) -> str:
    return f"{counted(packs, 'pack')}, {format_number(steps)} step{'s' * (steps != 1)}"


def histogram_lines(name: str, bars: Histogram, width: int) -> Iterator[str]:
    """Yields the lines of a histogram."""
    yield titled("", name)
    labels, counts = max(map(len, bars.labels)), max(len(str(count)) for count in bars.counts)
    room = max(4, min(LONGEST, width - len(INDENT) - labels - counts - 4))
    for label, count in zip(bars.labels, bars.counts):
        bar = BAR * max(count > 0, round(room * count / max(bars.counts)))
        yield f"{INDENT}{label:>{labels}}  {count:>{counts}}  {bar}".rstrip()


def format_percentiles(values: Distribution) -> str:
    p50, p95, largest = (format_number(value) for value in (values.p50, values.p95, values.max))
    return f"half of the samples have up to {p50}, 95 % up to {p95}, the longest {largest}"


def wrapped(word: str, message: str, width: int) -> list[str]:
    """Wraps a message after its label."""
    return textwrap.wrap(
        message, width, initial_indent=f"{word:<13}", subsequent_indent=INDENT, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def titled(word: str, text: str) -> str:
    return f"{word:<13}{text}"


def counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def clip(text: str, room: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= room else text[: max(1, room - 2)] + " …"
