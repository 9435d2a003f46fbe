"""Whether all ranks have cut up the same network, and train the same part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from worldsmith.planning.rehearsal.record import Finding, RankRecord

PART = "first step"
SHOWN = 3
"""Of many names so many are given."""


def compare_weights(records: Sequence[RankRecord], shares: int) -> Iterator[Finding]:
    """What is whole though `shares` ranks share the weights, and what differs between two ranks."""
    first = records[0]
    whole = [f"{name} {list(weight.shape)}" for name, weight in first.weights.items() if weight.whole]
    if whole and shares > 1:
        yield Finding(
            PART,
            f"{named(len(whole), 'weight')} not sharded: {listed(whole)}. Each of the {shares} ranks that share the "
            "weights holds all of that, and nothing adds up its gradients",
        )
    for other in records[1:]:
        yield from compare_names(first, other)
        yield from compare_trained(first, other)
        for name, weight in first.weights.items():
            own = other.weights.get(name)
            if own is None or (own.shape, own.dtype, own.whole) == (weight.shape, weight.dtype, weight.whole):
                continue
            forms = " and ".join(
                f"{list(w.shape)} {str(w.dtype).removeprefix('torch.')}{', whole' * w.whole} on rank {r.rank}"
                for r, w in ((first, weight), (other, own))
            )
            yield Finding(PART, f"{name} is {forms}")
            break


def compare_names(first: RankRecord, other: RankRecord) -> Iterator[Finding]:
    """Weights that only one of two ranks has."""
    for one, two in ((first, other), (other, first)):
        lacking = [name for name in one.weights if name not in two.weights]
        if lacking:
            yield Finding(PART, f"rank {two.rank} lacks {listed(lacking)}, which rank {one.rank} has")


def compare_trained(first: RankRecord, other: RankRecord) -> Iterator[Finding]:
    """Weights that are trained on one of two ranks and frozen on the other."""
    for one, two in ((first, other), (other, first)):
        names = [n for n, weight in one.weights.items() if weight.trained and n in two.weights]
        frozen = [name for name in names if not two.weights[name].trained]
        if frozen:
            yield Finding(PART, f"{listed(frozen)} trained on rank {one.rank} and frozen on rank {two.rank}")


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def named(number: int, what: str) -> str:
    return f"{number} {what}{'s are' if number != 1 else ' is'}"
