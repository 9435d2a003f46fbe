"""`Timeline`: what is held at each moment of a step, and the peaks of a deeper network from those of shallow ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, takewhile
from operator import eq
from typing import TYPE_CHECKING

from worldsmith.planning.work import PhaseMemory

if TYPE_CHECKING:
    from worldsmith.planning.simulation.memory_tracker import MemoryTracker


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events of one phase that follow each other."""

    phase: str
    changes: Sequence[tuple[int, str, str]]
    """Bytes on the device that each event adds, with the kind of the storage and the module that made it."""
    totals: Sequence[int]
    """Bytes on the device after each event."""


class Timeline:
    """The events of a step up to now, with the kinds that its storages have now."""

    def __init__(self, tracker: MemoryTracker) -> None:
        self.stretches: list[Stretch] = []
        total = 0
        for phase, group in groupby(tracker.events, key=lambda event: event[2]):
            on_device = ((number, change) for number, change, _ in group if number >= 0)
            found = [
                (change, *tracker.kind_and_module(number))
                for number, change in on_device
                if not tracker.held[number].elsewhere
            ]
            if found:
                totals = list(accumulate((change for change, *_ in found), initial=total))[1:]
                total = totals[-1]
                self.stretches.append(Stretch(phase, found, totals))

    def moment(self, stretch: int, number: int) -> PhaseMemory:
        """What is held after this event of a stretch."""
        kinds: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        before = (change for found in self.stretches[:stretch] for change in found.changes)
        found = self.stretches[stretch]
        for change, kind, module in chain(before, found.changes[: number + 1]):
            kinds[kind] += change
            if kind == "activations":
                modules[module] += change
        largest = sorted(((name, size) for name, size in modules.items() if size), key=lambda item: (-item[1], item[0]))
        held = {kind: size for kind, size in kinds.items() if size}
        return PhaseMemory(found.phase, found.totals[number], held, largest)


def deeper_peaks(base: Timeline, deeper: Mapping[Timeline, int]) -> dict[str, PhaseMemory]:
    """The peak of each phase of a network with more layers.

    Which moment is the peak depends on the depth, so each moment is extrapolated on its own. A moment of `base` has its
    equal in a deeper network: as far from the start of its stretch, or as far from the end.

    Args:
        base: The step of the network with the fewest layers.
        deeper: Steps with one layer more in one list of layers, each with how many layers this list lacks in `base`.

    Returns:
        The peak by phase, empty if the phases of the timelines do not follow each other in the same order.
    """
    kinds = [[stretch.phase for stretch in line.stretches] for line in (base, *deeper)]
    if any(found != kinds[0] for found in kinds):
        return {}
    best: dict[str, tuple[int, int, int, list[int]]] = {}
    for index, own in enumerate(base.stretches):
        matches = [alike_moments(own, line.stretches[index]) for line in deeper]
        for number, total in enumerate(own.totals):
            numbers = [match[number] for match in matches]
            peak = total
            for (line, times), other in zip(deeper.items(), numbers, strict=True):
                peak += times * (line.stretches[index].totals[other] - total) if other >= 0 else 0
            if own.phase and min(numbers) >= 0 and peak > best.get(own.phase, (-1,))[0]:
                best[own.phase] = peak, index, number, numbers
    found = {}
    for phase, (peak, index, number, numbers) in best.items():
        moment = base.moment(index, number)
        held = dict(moment.kinds)
        for (line, times), other in zip(deeper.items(), numbers, strict=True):
            more = line.moment(index, other).kinds
            for kind in {**moment.kinds, **more}:
                held[kind] = held.get(kind, 0) + times * (more.get(kind, 0) - moment.kinds.get(kind, 0))
        found[phase] = replace(moment, peak=peak, kinds=held)
    return found


def alike_moments(own: Stretch, other: Stretch) -> list[int]:
    """For each event the one of a deeper network that stands for it, where most is held; -1: there is none."""
    ahead = sum(1 for _ in takewhile(bool, map(eq, own.changes, other.changes)))
    behind = sum(1 for _ in takewhile(bool, map(eq, reversed(own.changes), reversed(other.changes))))
    count, more = len(own.totals), len(other.totals) - len(own.totals)
    found = []
    for number in range(count):
        candidates = [number] * (number < ahead) + [number + more] * (number >= count - behind)
        found.append(max(candidates, key=lambda index: other.totals[index], default=-1))
    return found
