"""`find_fits`: settings with which a run fits into its GPUs, or with how many GPUs it would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from worldsmith.config.errors import UserError
from worldsmith.distributed.gpus import Gpu
from worldsmith.planning.fitting.evaluate_settings import Fitting, limits_of
from worldsmith.planning.fitting.knobs import MOST_CONTEXT, Setting, as_it_is, can_share, smaller_clips
from worldsmith.planning.fitting.packs import tokens_of
from worldsmith.planning.fitting.search import OutOfTime, SettingSearch, Tried, needed

MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Enough:
    """A number of GPUs with which a setting fits."""

    gpus: int | None
    """None: no number is enough; 0: not known, since each setting was refused."""
    tried: Tried | None = None
    """The setting that fits."""


@dataclass(frozen=True, slots=True)
class Fits:
    """What was found."""

    now: Tried | None
    """The run as it is; None where its degrees are not for so many GPUs, or where it was not tried."""
    best: Sequence[Tried]
    """At most three."""
    others: Mapping[str, Sequence[Tried]]
    """What differs from the best in one knob, by that knob."""
    nearest: Tried | None
    """Where nothing fits, what is nearest."""
    enough: Enough | None
    """Where nothing fits, with how many GPUs it would; None: not looked for."""
    pace: Gpu
    """Whose speed the seconds are of."""
    data: str
    longest: int
    """Tokens of the longest sample in it."""
    tried: int
    settings: int
    not_tried: int = 0
    """Settings that may be better than what was found, for which there was no time."""
    stopped: Literal["", "time", "interrupted"] = ""
    """Why the search ended before everything was tried."""
    spent: float = 0.0
    """Seconds of processor time."""


def find_fits(fitting: Fitting) -> Fits:
    """Searches settings with which a run fits. Raises nothing for Ctrl-C: what was found up to then is the answer."""
    batches, limits = fitting.data.batches, limits_of(fitting.loaded)
    plain = next((setting for setting in fitting.settings if not setting.words and not setting.encoded), None)
    plain = plain or as_it_is(fitting.config, ranks=fitting.ranks, batches=batches, limits=limits)
    others = [setting for setting in fitting.settings if setting is not plain and (setting.words or setting.encoded)]
    search = fitting.search(others if plain is None else [plain, *others])
    searches = [(fitting, search)]
    stopped: Literal["", "time", "interrupted"] = ""
    about: dict[str, Any] = {"others": {}, "nearest": None, "enough": None}
    try:
        if plain is not None:
            search.try_(plain)
        search.best()
        for clips in () if search.found else smaller_clips(fitting.config):
            try:
                smaller = fitting.with_clips(clips)
            except (UserError, ValueError):  # what else the run says does not allow such clips
                continue
            searches.append((smaller, smaller.search(smaller.settings)))
            if searches[-1][1].best_if_least_fits():
                break
        if not searches[-1][1].found:
            about["nearest"] = search.nearest()
            if about["nearest"] is not None:
                about["enough"] = find_enough(fitting)
    except OutOfTime:
        stopped = "time"
    except KeyboardInterrupt:
        stopped = "interrupted"
    if stopped == "time":
        try:
            searches[-1][1].confirm()
        except KeyboardInterrupt:
            stopped = "interrupted"
    last, search = searches[-1]
    best = search.best_so_far
    if stopped and not best:
        needs = [tried for _, search in searches for tried in search.needs()]
        about["nearest"] = min(needs, key=needed, default=None)
    if not stopped and best:
        try:
            about["others"] = find_neighbors(last, search, best[0].setting)
        except KeyboardInterrupt:
            stopped = "interrupted"
    return Fits(
        now=None if plain is None else searches[0][1].known.get(plain),
        best=best,
        **about,
        pace=fitting.pace,
        data=last.data.described,
        longest=max(sample.num_tokens for pack in last.data.batches for sample in pack),
        tried=sum(len(search.known) for _, search in searches),
        settings=sum(len(search.settings) for _, search in searches),
        not_tried=sum(len(search.untried()) for _, search in searches) if stopped or search.stopped else 0,
        stopped=stopped or search.stopped,
        spent=fitting.clock.spent,
    )


def find_neighbors(fitting: Fitting, search: SettingSearch, best: Setting) -> dict[str, list[Tried]]:
    """What becomes of the best where one knob is turned, as far as there is time."""
    found: dict[str, list[Tried]] = {}
    for setting in search.settings:
        turned = [name for name, value in best.knobs.items() if setting.knobs[name] != value]
        if setting.learned == best.learned and len(turned) == 1:
            tried = search.known.get(setting)
            if tried is None and fitting.clock.left > 2 * fitting.seconds:
                tried = search.try_(setting)
            if tried is not None:
                found.setdefault(turned[0], []).append(tried)
    return found


def find_enough(fitting: Fitting) -> Enough:
    """The fewest GPUs, doubled again and again, with which a setting fits. Raises OutOfTime."""
    most = fitting.with_ranks(MOST_RANKS)
    possible = {change for change, setting in most.smallest.items() if states_fit(most, setting)}
    known, sharing, ranks = bool(most.smallest.keys() - possible), set[str](), fitting.ranks
    most_context = max(count for count in range(1, MOST_CONTEXT + 1) if can_share(fitting.config, count))
    while possible and (ranks := 2 * ranks) <= MOST_RANKS:
        more = fitting.with_ranks(ranks)
        alone, shared = more.smallest, more.with_most_context
        for change in [change for change in alone if change in possible]:
            for setting in (shared[change],) if change in sharing else (alone[change], shared[change]):
                if not states_fit(more, setting):
                    break
                if not fitting.has_time(True):
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


def states_fit(fitting: Fitting, setting: Setting) -> bool:
    """Whether what lasts from step to step fits."""
    states = fitting.states(setting)
    return states is not None and states.spare >= 0


def lacks_always(fitting: Fitting, tried: Tried) -> bool:
    """Whether a setting does not fit either without what lasts from step to step, which more GPUs share."""
    states = fitting.states(tried.setting)
    if tried.memory is None or tried.work is None or states is None:
        return False
    return replace(tried.memory, peak=max(0, tried.memory.peak - states.peak)).spare < 0


def of_largest_pack(setting: Setting) -> Setting:
    """The setting with its largest pack instead of each: the memory of a step is that of this pack."""
    packs = setting.packs.batches
    largest = max(packs, key=tokens_of)
    return replace(setting, packs=replace(setting.packs, batches=[largest] * len(packs)))
