"""Computes the peak memory of each phase and its breakdown from memory events, also extrapolated to more layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile
from operator import eq

from worldsmith.planning.work import PhaseMemory

Change = tuple[int, str, str]
"""Memory change: (bytes added on the device, memory category of the storage, module that created the storage)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive memory events of one phase."""

    phase: str
    changes: Sequence[Change]
    totals: Sequence[int]
    """Bytes on the device after each event."""


class Timeline:
    """Memory events of one step, divided into stretches (consecutive events of the same phase).

    Args:
        stretches: (phase, changes) of each stretch; a change is (bytes added on the device, memory category, module).
    """

    def __init__(self, stretches: Iterable[tuple[str, Sequence[Change]]]) -> None:
        self.stretches: list[Stretch] = []
        total = 0
        for phase, changes in stretches:
            totals = list(accumulate((change for change, *_ in changes), initial=total))[1:]
            total = totals[-1]
            self.stretches.append(Stretch(phase, changes, totals))

    def moment(self, stretch: int, number: int) -> PhaseMemory:
        """Returns the memory breakdown after event `number` of stretch `stretch` (0-based indices)."""
        before = (change for found in self.stretches[:stretch] for change in found.changes)
        found = self.stretches[stretch]
        return memory_after(chain(before, found.changes[: number + 1]), found.phase)


def memory_after(changes: Iterable[Change], phase: str, main_memory: int = 0) -> PhaseMemory:
    """Returns the breakdown of device memory after a sequence of changes that starts with empty memory.

    Args:
        changes: (bytes added on the device, memory category, module) in temporal order.
        phase: Name of the phase in the result.
        main_memory: Peak host RAM of the phase in bytes, which is copied to the result.
    """
    kinds, modules = Counter[str](), Counter[str]()
    for change, kind, module in changes:
        kinds[kind] += change
        if kind == "activations":
            modules[module] += change
    held = {kind: size for kind, size in kinds.most_common() if size}
    largest = sorted(((name, size) for name, size in modules.items() if size), key=lambda item: (-item[1], item[0]))
    return PhaseMemory(phase, sum(held.values()), held, largest, main_memory)


def weighted_sum(phases: Sequence[PhaseMemory], counts: Sequence[int]) -> PhaseMemory:
    """Returns the weighted sum of phases: `counts[i]` times `phases[i]`, under the name of the first phase."""
    kinds = Counter[str]()
    for phase, count in zip(phases, counts, strict=True):
        for kind, size in phase.kinds.items():
            kinds[kind] += count * size
    return replace(
        phases[0],
        peak=sum(count * phase.peak for phase, count in zip(phases, counts, strict=True)),
        kinds={kind: size for kind, size in kinds.items() if size},
        modules=next((phase.modules for phase in phases if phase.modules), []),
        main_memory=sum(count * phase.main_memory for phase, count in zip(phases, counts, strict=True)),
    )


def deeper_peaks(base: Timeline, deeper: Mapping[Timeline, int]) -> dict[str, PhaseMemory]:
    """Extrapolates the peak of each phase to a network with more layers.

    Which moment of a step is the peak depends on the number of layers, so every moment is extrapolated. A moment of
    `base` is compared with the moment of the deeper network that has the same distance from the start or the end of its
    stretch (consecutive memory events of one phase).

    Args:
        base: Step of the network with the fewest layers.
        deeper: Steps with one more layer in one list of layers, each with the number of layers to add to this list.

    Returns:
        Peak by phase name; empty if the timelines have different sequences of phases.
    """
    kinds = [[stretch.phase for stretch in line.stretches] for line in (base, *deeper)]
    if any(found != kinds[0] for found in kinds):
        return {}
    best: dict[str, tuple[int, int, int, list[int]]] = {}
    for index, own in enumerate(base.stretches):
        matches = [match_events(own, line.stretches[index]) for line in deeper]
        for number, total in enumerate(own.totals):
            numbers = [match[number] for match in matches]
            if not own.phase or min(numbers) < 0:
                continue
            more = (line.stretches[index].totals[other] - total for line, other in zip(deeper, numbers, strict=True))
            peak = total + sum(times * extra for times, extra in zip(deeper.values(), more, strict=True))
            if peak > best.get(own.phase, (-1,))[0]:
                best[own.phase] = peak, index, number, numbers
    found = {}
    for phase, (_, index, number, numbers) in best.items():
        moments = [base.moment(index, number), *(line.moment(index, n) for line, n in zip(deeper, numbers))]
        found[phase] = weighted_sum(moments, [1 - sum(deeper.values()), *deeper.values()])
    return found


def match_events(own: Stretch, other: Stretch) -> list[int]:
    """Returns for each event of `own` the index of the matching event in `other`; -1 without a match.

    Two events match if all changes from the start of the stretches to the events are equal, or all changes from the
    events to the end. If both ways give a match, the event of `other` with more memory is returned.
    """
    ahead = sum(1 for _ in takewhile(bool, map(eq, own.changes, other.changes)))
    behind = sum(1 for _ in takewhile(bool, map(eq, reversed(own.changes), reversed(other.changes))))
    count, more = len(own.totals), len(other.totals) - len(own.totals)
    found = []
    for number in range(count):
        candidates = [number] * (number < ahead) + [number + more] * (number >= count - behind)
        found.append(max(candidates, key=lambda index: other.totals[index], default=-1))
    return found
