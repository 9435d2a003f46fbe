"""Whether all ranks call the same collectives in the same order: else a run hangs, or mixes up what it is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from worldsmith.planning.rehearsal.record import Finding, RankRecord
from worldsmith.planning.simulation.traffic import Sent

PART = "first step"


def compare_traces(records: Sequence[RankRecord]) -> list[Finding]:
    """Each rank against the first one with which it shares a group, in the groups that both belong to."""
    found: dict[int, Finding] = {}
    firsts: dict[tuple[int, ...], RankRecord] = {}
    for record in records:
        groups = {sent.ranks for sent in record.trace}
        for group in groups:
            firsts.setdefault(group, record)
        # A group that only one of its members ever calls is looked for among those that are before it.
        others = [firsts[group] for group in groups] + [o for g, o in firsts.items() if record.rank in g]
        for first in {other.rank: other for other in others if other is not record}.values():
            finding = compare_ranks(first, record)
            if finding is not None:
                found.setdefault(record.rank, finding)
    return [*found.values(), *outsiders(records)]


def compare_ranks(first: RankRecord, other: RankRecord) -> Finding | None:
    """The first difference in the groups that both ranks belong to."""
    expected, called = ([s for s in r.trace if {first.rank, other.rank} <= set(s.ranks)] for r in (first, other))
    keys, own = list(map(key, expected)), list(map(key, called))
    if keys == own:
        return None
    pairs = enumerate(zip_longest(expected, called))
    place = next(n for n, (a, b) in pairs if a is None or b is None or key(a) != key(b))
    wanted = describe(expected[place]) if place < len(expected) else "no further one"
    instead = describe(called[place]) if place < len(called) else "no further one"
    if Counter(keys) == Counter(own):
        verdict = f"calls its collectives in another order than rank {first.rank}"
    elif len(own) < len(keys):
        verdict = f"skips {count(len(keys) - len(own))} that rank {first.rank} calls"
    elif len(own) > len(keys):
        verdict = f"calls {count(len(own) - len(keys))} more than rank {first.rank}"
    else:
        verdict = f"calls another collective than rank {first.rank}"
    return Finding(
        PART,
        f"rank {other.rank} {verdict}: number {place + 1} of the step is {instead}, and on rank {first.rank} {wanted}. "
        "The ranks would wait for each other for ever, or take one tensor for another",
    )


def outsiders(records: Sequence[RankRecord]) -> Iterator[Finding]:
    """Collectives of groups that the calling rank does not belong to."""
    for record in records:
        strange = next((sent for sent in record.trace if record.rank not in sent.ranks), None)
        if strange is not None:
            yield Finding(PART, f"rank {record.rank} calls {describe(strange)}, and is not among these ranks")


def key(sent: Sent) -> tuple[str, tuple[int, ...], int, str, str]:
    """What must be the same on all ranks. Two layers of one size are told apart by the module alone."""
    return sent.op, sent.ranks, sent.payload, str(sent.dtype), sent.module


def describe(sent: Sent) -> str:
    dtype = str(sent.dtype).removeprefix("torch.")
    where = f" of {sent.module}" if sent.module else ""
    return f"{sent.op}{where} ({sent.payload:,} bytes, {dtype}, ranks {in_words(sent.ranks)})"


def in_words(ranks: Sequence[int]) -> str:
    """`0-7`, `0, 2, 4` or `0, 8, … 504`."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks if len(ranks) <= 4 else [*ranks[:2], f"… {ranks[-1]}"]))


def count(number: int) -> str:
    return f"{number} collective{'s' * (number != 1)}"
