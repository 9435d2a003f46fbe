"""`find_enough`: with how many GPUs a run fits that does not fit into those that it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from worldsmith.planning.fitting.knobs import MOST_CONTEXT, Setting, can_share
from worldsmith.planning.fitting.packs import tokens_of
from worldsmith.planning.fitting.search import OutOfTime, Tried

if TYPE_CHECKING:
    from worldsmith.planning.fitting.fit import Fitting

MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Enough:
    """A number of GPUs with which a setting fits."""

    gpus: int | None
    """None: no number is enough; 0: not known, since each setting was refused."""
    tried: Tried | None = None
    """The setting that fits."""


def find_enough(search: Fitting) -> Enough:
    """The fewest GPUs, doubled again and again, with which a setting fits. Raises OutOfTime."""
    most = search.with_ranks(MOST_RANKS)
    possible = {change for change, setting in most.smallest.items() if states_fit(most, setting)}
    known, sharing, ranks = bool(most.smallest.keys() - possible), set[str](), search.ranks
    most_context = max(count for count in range(1, MOST_CONTEXT + 1) if can_share(search.config, count))
    while possible and (ranks := 2 * ranks) <= MOST_RANKS:
        more = search.with_ranks(ranks)
        alone, shared = more.smallest, more.with_most_context
        for change in [change for change in alone if change in possible]:
            for setting in (shared[change],) if change in sharing else (alone[change], shared[change]):
                if not states_fit(more, setting):
                    break
                if not search.has_time(True):
                    raise OutOfTime
                tried = more.evaluate(of_largest_pack(setting), False)
                if tried.fits:
                    return Enough(ranks, tried)
                known |= tried.memory is not None
                if not lacks_always(more, tried):
                    break
                sharing.add(change)
                if int(setting.knobs["context"]) == most_context:
                    possible.remove(change)
                    break
    return Enough(None if known else 0)


def states_fit(search: Fitting, setting: Setting) -> bool:
    """Whether what lasts from step to step fits."""
    states = search.states(setting)
    return states is not None and states.spare >= 0


def lacks_always(search: Fitting, tried: Tried) -> bool:
    """Whether a setting does not fit either without what lasts from step to step, which more GPUs share."""
    states = search.states(tried.setting)
    if tried.memory is None or tried.work is None or states is None:
        return False
    return replace(tried.memory, peak=max(0, tried.memory.peak - states.peak)).spare < 0


def of_largest_pack(setting: Setting) -> Setting:
    """The setting with its largest pack instead of each: the memory of a step is that of this pack."""
    packs = setting.packs.batches
    largest = max(packs, key=tokens_of)
    return replace(setting, packs=replace(setting.packs, batches=[largest] * len(packs)))
