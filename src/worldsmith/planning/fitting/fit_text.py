"""What was found of settings that fit, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from worldsmith.distributed.gpus import Gpu
from worldsmith.monitor.terminal_text import command_lines
from worldsmith.planning.assumptions import encoded_first
from worldsmith.planning.fitting.fit import Fits
from worldsmith.planning.fitting.search import Tried
from worldsmith.planning.text import line, size, span

FIRST = 15
FEW = "; estimated from a run with few layers"
"""Of a setting that was not carried out with all layers."""
NOT_THERE = (
    "weights, moments or activations in main memory (offload), weights or layers cut otherwise (tensor, pipeline)"
)
"""What other programs have against a lack of memory, and runs here have not."""


def fit_lines(fits: Fits, gpu: Gpu, start: Sequence[str], run: Sequence[str], *, steps: int) -> Iterator[str]:
    """Formats the settings that were found.

    Args:
        fits: Result of the search.
        gpu: The GPU that is planned for.
        start: Command that trains in as many processes.
        run: Arguments that describe the run, up to those of a setting.
        steps: Optimizer steps of the run.
    """
    now = "its degrees are not for so many GPUs" if fits.tried else "not tried"
    yield from row("as it is", now if fits.now is None else verdict(fits.now))
    if not fits.best:
        yield from nothing_fits(fits, start, run)
    for number, tried in enumerate(fits.best, start=1):
        yield ""
        yield from row(f"{number}. {'fits' if number == 1 else 'fits, too'}", verdict(tried))
        if tried.seconds is not None:
            yield from row("run", f"{span(tried.seconds * steps)} for {steps:,} steps, without validation and saving")
        yield from row("learned", describe_learned(tried))
        yield from row("settings", ", ".join(f"{name} {value}" for name, value in tried.setting.knobs.items()))
        if tried.setting.encoded and tried.work is not None:
            yield from row("encoders", encoded_first(tried.work))
        yield from commands(start, run, tried)
    if fits.others and fits.best:
        yield ""
        yield "the first against those that differ in one thing:"
        for name, others in fits.others.items():
            told = "; ".join(f"{o.setting.knobs[name]}: {compared(o, fits.best[0])}" for o in others)
            yield from row(f"  {name}", told, first=FIRST + 2)
    yield ""
    told = f"{fits.tried} of {fits.settings} settings; a step has the same samples in all of them"
    if fits.stopped:
        why = "interrupted" if fits.stopped == "interrupted" else "the time was up"
        told += f"; {why} after {fits.spent:.0f} s of processor time"
        if fits.not_tried:
            settings = "1 setting" if fits.not_tried == 1 else f"{fits.not_tried} settings"
            told += f", before {settings} that may be better"
    yield from row("tried", told)
    yield from row("data", f"{fits.data}; longer samples than {fits.longest:,} tokens may not go into smaller packs")
    if fits.pace is not gpu:
        yield from row("seconds", f"those of {fits.pace.name}: {gpu.name} states the memory of a GPU, not its speed")
    yield from row("not there", NOT_THERE)


def nothing_fits(fits: Fits, start: Sequence[str], run: Sequence[str]) -> Iterator[str]:
    yield ""
    if fits.nearest is None:
        yield from row("nothing fits", "of what was tried" if fits.stopped else "each setting was refused")
        return
    yield from row("nothing fits", f"nearest: {verdict(fits.nearest)}")
    yield from row("learned", describe_learned(fits.nearest))
    yield from commands(start, run, fits.nearest)
    enough = fits.enough
    if enough is not None and enough.tried is not None:
        yield from row("GPUs", f"with {enough.gpus} of them it fits; plan with --gpus {enough.gpus} --fit")
        yield from row("learned", describe_learned(enough.tried))
    elif enough is not None and enough.gpus is None:
        yield from row("GPUs", "no number of GPUs is enough: what they do not share is too large, such as a pack")


def commands(start: Sequence[str], run: Sequence[str], tried: Tried) -> Iterator[str]:
    """What encodes all ahead of the run, where the setting asks for that, and what trains."""
    for begin in ([["worldsmith", "encode"]] if tried.setting.encoded else []) + [[*start]]:
        words = [*begin, *run, *tried.setting.words]
        yield from command_lines(words[:-1] if words[-1] == "--" else words)


def describe_learned(tried: Tried) -> str:
    """What the setting changes in what the run learns."""
    change = tried.setting.learned
    return f"changes: {change.says}" if change.level else "the same as without these settings"


def verdict(tried: Tried) -> str:
    memory = tried.memory
    if memory is None:
        return f"refused: {tried.refused}"
    if tried.work is None:
        return f"{size(-memory.spare)} too much, before anything is computed"
    room = f"{size(memory.spare)} to spare" if tried.fits else f"{size(-memory.spare)} too much"
    seconds = f"; {span(tried.seconds)} a step" if tried.seconds is not None else ""
    held = f"tensors {size(memory.peak)}" + (f", encoders {size(memory.encoders)}" if memory.encoders else "")
    return f"{size(memory.needed)} of {size(memory.gpu.memory)} ({held}), {room}{seconds}{'' if tried.whole else FEW}"


def compared(other: Tried, best: Tried) -> str:
    """Why it is not the best."""
    if other.memory is None:
        return f"is refused ({other.refused})"
    if not other.fits:
        return f"needs {size(-other.memory.spare)} too much"
    assert other.seconds is not None
    assert best.seconds is not None
    share = other.seconds.middle / best.seconds.middle - 1
    return f"{share:.1%} slower" if share >= 0 else f"{-share:.1%} faster"


def row(about: str, text: str, *, first: int = FIRST) -> Iterator[str]:
    yield from line(about, text, first=first)


def fit_facts(fits: Fits) -> dict[str, Any]:
    """The same as plain data: bytes and seconds."""
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
    setting = tried.setting
    return {
        "words": list(setting.words),
        "encoded_first": setting.encoded,
        "changes_what_is_learned": setting.learned.level > 0,
        "learned": setting.learned.says,
        "knobs": dict(setting.knobs),
        "fits": tried.fits,
        "all_layers": tried.whole,
        "memory": None if tried.memory is None else tried.memory.to_json(),
        "seconds": None if tried.seconds is None else asdict(tried.seconds),
        "refused": tried.refused,
    }
