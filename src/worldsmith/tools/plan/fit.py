"""`worldsmith plan --fit`: finds settings that make a run fit into its GPUs, or the number of GPUs that is enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from worldsmith.config.errors import UserError
from worldsmith.distributed.gpus import Gpu
from worldsmith.monitor.terminal_text import command_lines
from worldsmith.planning.assumptions import encoded_first
from worldsmith.planning.plan_text import format_duration_range, size, wrap_row
from worldsmith.tools.plan.evaluate_settings import Fitting, limits_of
from worldsmith.tools.plan.packs import tokens_of
from worldsmith.tools.plan.setting_search import OutOfTime, SettingSearch, Tried, needed
from worldsmith.tools.plan.settings import MOST_CONTEXT, Setting, baseline_setting, smaller_clips, supports_context

MOST_RANKS = 4096
FIRST = 15
FEW = "; estimated from a run with few layers"
"""Suffix of an output line about a setting that was not simulated with all layers."""
NOT_TRIED = 'offload = "all" (trained weights, optimizer state); tensor or pipeline parallelism (not available)'
"""Ways to save memory that the search does not try."""


@dataclass(frozen=True, slots=True)
class Enough:
    """Result of the search for a number of GPUs on which the run fits."""

    gpus: int | None
    """Number of GPUs on which the run fits; None: no number is enough; 0: unknown, all settings were rejected."""
    tried: Tried | None = None
    """Setting that fits on these GPUs."""


@dataclass(frozen=True, slots=True)
class Fits:
    """Result of `worldsmith plan --fit`: the best settings that fit, or the nearest one and enough GPUs."""

    now: Tried | None
    """The unchanged run; None if its parallelism degrees do not fit the number of GPUs, or if it was not evaluated."""
    best: Sequence[Tried]
    """Best settings that fit, at most three."""
    others: Mapping[str, Sequence[Tried]]
    """Name of an option -> settings that differ from the best one only in this option."""
    nearest: Tried | None
    """Setting that needs the least memory, if no setting fits; else None."""
    enough: Enough | None
    """Number of GPUs on which the run would fit, if no setting fits; None: not searched."""
    pace: Gpu
    """GPU type for whose speed the seconds are estimated."""
    data: str
    longest: int
    """Number of tokens of the longest sample in the data."""
    tried: int
    settings: int
    not_tried: int = 0
    """Number of settings that were not evaluated and may be better than the result."""
    stopped: Literal["", "time", "interrupted"] = ""
    """Reason why the search ended early; "" if it was complete."""
    spent: float = 0.0
    """CPU seconds of the search."""


def find_fits(fitting: Fitting) -> Fits:
    """Searches the best settings with which a run fits into the memory of its GPUs.

    If no setting fits, searches settings with smaller clips and then a sufficient number of GPUs. Ctrl-C and the end of
    the time budget end the search without an exception; the result then contains the settings evaluated before.
    """
    batches, limits = fitting.data.batches, limits_of(fitting.loaded)
    plain = next((setting for setting in fitting.settings if not setting.words), None)
    plain = plain or baseline_setting(fitting.config, ranks=fitting.ranks, batches=batches, limits=limits)
    others = [setting for setting in fitting.settings if setting is not plain and setting.words]
    search = fitting.search(others if plain is None else [plain, *others])
    searches = [(fitting, search)]
    stopped: Literal["", "time", "interrupted"] = ""
    about: dict[str, Any] = {"others": {}, "nearest": None, "enough": None}
    try:
        if plain is not None:
            search.evaluate_now(plain)
        search.best()
        for clips in () if search.found else smaller_clips(fitting.config):
            try:
                smaller = fitting.with_clips(clips)
            except (UserError, ValueError):  # other settings of the run do not allow such clips
                continue
            searches.append((smaller, smaller.search(smaller.settings)))
            if searches[-1][1].best_if_least_fits():
                break
        if not searches[-1][1].found:
            about["nearest"] = search.nearest()
            if about["nearest"] is not None:
                about["enough"] = find_enough_gpus(fitting)
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
    """Evaluates the settings that differ from the setting `best` in one option, as long as there is time.

    Returns {option name: evaluated settings that differ from `best` only in this option}.
    """
    found: dict[str, list[Tried]] = {}
    for setting in (setting for setting in search.settings if setting.learned == best.learned):
        turned = [name for name, value in best.options.items() if setting.options[name] != value]
        if len(turned) == 1:
            tried = search.known.get(setting)
            if tried is None and fitting.clock.left > 2 * fitting.seconds:
                tried = search.evaluate_now(setting)
            if tried is not None:
                found.setdefault(turned[0], []).append(tried)
    return found


def find_enough_gpus(fitting: Fitting) -> Enough:
    """Doubles the number of GPUs until a setting fits; returns this number with the setting.

    The result has no setting if no number of GPUs is enough. Raises OutOfTime if the time budget is exceeded.
    """
    most = fitting.with_ranks(MOST_RANKS)
    possible = {change for change, setting in most.smallest.items() if states_fit(most, setting)}
    known, sharing, ranks = bool(most.smallest.keys() - possible), set[str](), fitting.ranks
    most_context = max(count for count in range(1, MOST_CONTEXT + 1) if supports_context(fitting.config, count))
    while possible and (ranks := 2 * ranks) <= MOST_RANKS:
        more = fitting.with_ranks(ranks)
        alone, shared = more.smallest, more.with_most_context
        for change in [change for change in alone if change in possible]:
            for setting in (shared[change],) if change in sharing else (alone[change], shared[change]):
                if not states_fit(more, setting):
                    break
                if not fitting.has_time(True):
                    raise OutOfTime
                tried = more.evaluate(with_largest_pack(setting), False)
                if tried.fits:
                    return Enough(ranks, tried)
                known |= tried.memory is not None
                if not never_fits(more, tried):
                    break
                sharing.add(change)
                if int(setting.options["context"]) == most_context:
                    possible.remove(change)
                    break
    return Enough(None if known else 0)


def states_fit(fitting: Fitting, setting: Setting) -> bool:
    """Returns whether weights, gradients and optimizer state fit into the GPU memory with a setting.

    False if the run does not support the setting.
    """
    states = fitting.states(setting)
    return states is not None and states.spare >= 0


def never_fits(fitting: Fitting, tried: Tried) -> bool:
    """Returns whether a setting would not fit on any number of GPUs.

    This is the case if it exceeds the GPU memory even without weights, gradients and optimizer state, which are
    sharded. False if the setting was not simulated.
    """
    states = fitting.states(tried.setting)
    if tried.memory is None or tried.work is None or states is None:
        return False
    return replace(tried.memory, peak=max(0, tried.memory.peak - states.peak)).spare < 0


def with_largest_pack(setting: Setting) -> Setting:
    """Returns a copy of the setting whose packed batches are all the largest one, which determines the memory."""
    packs = setting.packs.batches
    largest = max(packs, key=tokens_of)
    return replace(setting, packs=replace(setting.packs, batches=[largest] * len(packs)))


def fit_lines(fits: Fits, gpu: Gpu, start: Sequence[str], run: Sequence[str], *, steps: int) -> Iterator[str]:
    """Yields the output lines of `worldsmith plan --fit`.

    Args:
        fits: Result of the search.
        gpu: The GPU that is planned for.
        start: Command that trains with the planned number of processes, without the arguments in `run`.
        run: Command-line arguments that describe the run; the overrides of a setting are appended.
        steps: Optimizer steps of the run.
    """
    now = "its parallelism degrees do not fit this number of GPUs" if fits.tried else "not evaluated"
    yield from row("baseline", now if fits.now is None else verdict(fits.now))
    if not fits.best:
        yield from nothing_fits(fits, start, run)
    for number, tried in enumerate(fits.best, start=1):
        yield ""
        yield from row(f"{number}. {'fits' if number == 1 else 'also fits'}", verdict(tried))
        if tried.seconds is not None:
            yield from row(
                "run",
                f"{format_duration_range(tried.seconds * steps)} for {steps:,} steps, without validation and saving",
            )
        yield from row("learned", describe_learned(tried))
        yield from row("settings", ", ".join(f"{name} {value}" for name, value in tried.setting.options.items()))
        if tried.work is not None and (held := tried.work.host_bytes):
            yield from row("host RAM", f"{size(held)} for the offloaded tensors of each GPU")
        if tried.encodes_first and tried.work is not None:
            yield from row("encoders", encoded_first(tried.work, in_run=True))
        yield from commands(start, run, tried)
    if fits.others and fits.best:
        yield ""
        yield "settings that differ from the best one in one option, compared with it:"
        for name, others in fits.others.items():
            told = "; ".join(f"{o.setting.options[name]}: {compared(o, fits.best[0])}" for o in others)
            yield from row(f"  {name}", told, first=FIRST + 2)
    yield ""
    told = f"{fits.tried} of {fits.settings} settings; a step has the same samples with all of them"
    if fits.stopped:
        why = "interrupted" if fits.stopped == "interrupted" else "the time limit was reached"
        told += f"; {why} after {fits.spent:.0f} s of CPU time"
        if fits.not_tried:
            settings = "1 setting" if fits.not_tried == 1 else f"{fits.not_tried} settings"
            told += f", before {settings} that may be better"
    yield from row("tried", told)
    yield from row("data", f"{fits.data}; samples longer than {fits.longest:,} tokens may not fit into smaller packs")
    if fits.pace is not gpu:
        yield from row("seconds", f"estimated for {fits.pace.name}: {gpu.name} only states a memory size, no speed")
    yield from row("not tried", NOT_TRIED)


def nothing_fits(fits: Fits, start: Sequence[str], run: Sequence[str]) -> Iterator[str]:
    """Yields the output lines of a search that found no setting that fits.

    `start` is the training command, `run` the command-line arguments that describe the run.
    """
    yield ""
    if fits.nearest is None:
        yield from row("no setting fits", "of the evaluated ones" if fits.stopped else "every setting was rejected")
        return
    yield from row("no setting fits", f"nearest: {verdict(fits.nearest)}")
    yield from row("learned", describe_learned(fits.nearest))
    yield from commands(start, run, fits.nearest)
    enough = fits.enough
    if enough is not None and enough.tried is not None:
        yield from row("GPUs", f"the run fits on {enough.gpus} GPUs; try --gpus {enough.gpus} --fit")
        yield from row("learned", describe_learned(enough.tried))
    elif enough is not None and enough.gpus is None:
        yield from row(
            "GPUs",
            ("no number of GPUs is enough: the memory that is not sharded, such as the activations, is too large"),
        )


def commands(start: Sequence[str], run: Sequence[str], tried: Tried) -> Iterator[str]:
    """Yields the lines with the training command for a setting.

    `start` is the command without arguments, `run` the command-line arguments that describe the run.
    """
    words = [*start, *run, *tried.setting.words]
    yield from command_lines(words[:-1] if words[-1] == "--" else words)


def describe_learned(tried: Tried) -> str:
    """Returns a text that describes how a setting changes the training result, or that the result is unchanged."""
    change = tried.setting.learned
    return f"changes: {change.says}" if change.level else "the same as without these settings"


def verdict(tried: Tried) -> str:
    """Returns needed memory, free memory and step time of an evaluated setting as text, or why it was rejected."""
    memory = tried.memory
    if memory is None:
        return f"refused: {tried.refused}"
    if tried.work is None:
        return f"weights and optimizer state exceed the GPU memory by {size(-memory.spare)}"
    room = f"{size(memory.spare)} free" if tried.fits else f"{size(-memory.spare)} too much"
    seconds = f"; {format_duration_range(tried.seconds)} per step" if tried.seconds is not None else ""
    held = f"tensors {size(memory.peak)}" + (f", encoders {size(memory.encoders)}" if memory.encoders else "")
    return f"{size(memory.needed)} of {size(memory.gpu.memory)} ({held}), {room}{seconds}{'' if tried.whole else FEW}"


def compared(other: Tried, best: Tried) -> str:
    """Returns a comparison of `other` with `best` as text: relative step time, or why `other` cannot be used."""
    if other.memory is None:
        return f"is rejected ({other.refused})"
    if not other.fits:
        return f"needs {size(-other.memory.spare)} too much"
    assert other.seconds is not None
    assert best.seconds is not None
    share = other.seconds.middle / best.seconds.middle - 1
    return f"{share:.1%} slower" if share >= 0 else f"{-share:.1%} faster"


def row(label: str, text: str, *, first: int = FIRST) -> Iterator[str]:
    """Yields `text` after a label, wrapped to the terminal; `first` is the width of the label column."""
    yield from wrap_row(label, text, first=first)


def fit_facts(fits: Fits) -> dict[str, Any]:
    """Returns the result of `worldsmith plan --fit` as JSON data, with bytes and seconds.

    "as_it_is" is the unchanged run, "best" the settings that fit, "nearest" the setting with the least memory if no
    setting fits. "others" are, by option, the settings that differ from the best one only in this option. The remaining
    entries describe the search.
    """
    return {
        "as_it_is": None if fits.now is None else facts(fits.now),
        "best": [facts(tried) for tried in fits.best],
        "others": {name: [facts(tried) for tried in others] for name, others in fits.others.items()},
        "nearest": None if fits.nearest is None else facts(fits.nearest),
        "enough_gpus": (fits.enough and fits.enough.gpus) or None,
        "seconds_of": fits.pace.name,
        "data": fits.data,
        "longest_sample": fits.longest,
        "tried": fits.tried,
        "settings": fits.settings,
        "not_tried": fits.not_tried,
        "stopped": fits.stopped,
    }


def facts(tried: Tried) -> dict[str, Any]:
    """Returns an evaluated setting as JSON data: overrides ("words"), options, memory in bytes and seconds per step.

    "memory" and "seconds" are None if they are unknown; "refused" is the reason of a rejection, "" if not rejected.
    """
    setting = tried.setting
    return {
        "words": list(setting.words),
        "encoded_first": tried.encodes_first,
        "changes_what_is_learned": setting.learned.level > 0,
        "learned": setting.learned.says,
        "options": dict(setting.options),
        "fits": tried.fits,
        "all_layers": tried.whole,
        "memory": None if tried.memory is None else tried.memory.to_json(),
        "seconds": None if tried.seconds is None else asdict(tried.seconds),
        "refused": tried.refused,
    }
