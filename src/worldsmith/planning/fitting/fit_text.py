"""What was found of settings that fit, for people and for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from worldsmith.distributed.gpus import Gpu
from worldsmith.planning.fitting.fit import Fits
from worldsmith.planning.fitting.search import Tried
from worldsmith.planning.text import WIDTH, line, size, span

FIRST = 15
NOT_THERE = (
    "weights, moments or activations in main memory (offload), weights or layers cut otherwise (tensor, pipeline)"
)
"""What other programs have against a lack of memory, and runs here have not."""


def fit_lines(fits: Fits, gpu: Gpu, command: Sequence[str]) -> Iterator[str]:
    """`command`: the words of the run up to those of a setting."""
    yield from row("as it is", "its degrees are not for so many GPUs" if fits.now is None else verdict(fits.now))
    if fits.nearest is not None or not fits.best:
        yield from nothing_fits(fits, command)
    for number, tried in enumerate(fits.best, start=1):
        yield ""
        yield from row(f"{number}. {'fits' if number == 1 else 'fits, too'}", verdict(tried))
        yield from row("learned", f"changes: {tried.setting.learned.says}")
        yield from row("knobs", ", ".join(f"{name} {value}" for name, value in tried.setting.knobs.items()))
        yield from command_lines(pasted(command, tried))
    if fits.others and fits.best:
        yield ""
        yield "the first against those that differ in one thing:"
        for name, others in fits.others.items():
            told = "; ".join(f"{o.setting.knobs[name]}: {compared(o, fits.best[0])}" for o in others)
            yield from row(f"  {name}", told, first=FIRST + 2)
    yield ""
    yield from row("tried", f"{fits.tried} of {fits.settings} settings; a step has the same samples in all of them")
    yield from row("data", f"{fits.data}; longer samples than {fits.longest:,} tokens may not go into smaller packs")
    if fits.pace is not gpu:
        yield from row("seconds", f"those of {fits.pace.name}, since of {gpu.name} the memory alone is known")
    yield from row("not there", NOT_THERE)


def nothing_fits(fits: Fits, command: Sequence[str]) -> Iterator[str]:
    yield ""
    if fits.nearest is None:
        yield from row("nothing fits", "each setting was refused")
        return
    yield from row("nothing fits", f"nearest: {verdict(fits.nearest)}")
    yield from row("learned", f"changes: {fits.nearest.setting.learned.says}")
    yield from command_lines(pasted(command, fits.nearest))
    enough = "no number of GPUs is enough: a pack's own memory is too large" if fits.enough is None else ""
    yield from row("GPUs", enough or f"with {fits.enough} of them this setting fits")


def pasted(command: Sequence[str], tried: Tried) -> list[str]:
    words = [*command, *tried.setting.words]
    return words[:-1] if words[-1] == "--" else words


def verdict(tried: Tried) -> str:
    memory = tried.memory
    if memory is None:
        return f"refused: {tried.refused}"
    if tried.work is None:
        return f"{size(-memory.spare)} too much, before anything is computed"
    room = f"{size(memory.spare)} to spare" if tried.fits else f"{size(-memory.spare)} too much"
    seconds = f"; {span(tried.seconds)} a step" if tried.seconds is not None else ""
    return f"{size(memory.needed)} of {size(memory.gpu.memory)} (tensors {size(memory.peak)}), {room}{seconds}"


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


def command_lines(words: Sequence[str]) -> Iterator[str]:
    """A command of several lines that can be pasted."""
    lines, now = [], ""
    for word in map(shlex.quote, words):
        if now and len(now) + len(word) > WIDTH - 8:
            lines.append(now)
            now = ""
        now += f" {word}" if now else word
    lines.append(now)
    yield from ("    " + text for text in " \\\n  ".join(lines).split("\n"))


def row(about: str, text: str, *, first: int = FIRST) -> Iterator[str]:
    yield from line(about, text, first=first)


def fit_facts(fits: Fits) -> dict[str, Any]:
    """The same as plain data: bytes and seconds."""
    return {
        "as_it_is": None if fits.now is None else facts(fits.now),
        "best": [facts(tried) for tried in fits.best],
        "others": {name: [facts(tried) for tried in others] for name, others in fits.others.items()},
        "nearest": None if fits.nearest is None else facts(fits.nearest),
        "enough_gpus": fits.enough,
        "seconds_of": fits.pace.name,
        "data": fits.data,
        "longest_sample": fits.longest,
        "tried": fits.tried,
        "settings": fits.settings,
    }


def facts(tried: Tried) -> dict[str, Any]:
    setting = tried.setting
    return {
        "words": list(setting.words),
        "changes_what_is_learned": setting.learned.level > 0,
        "learned": setting.learned.says,
        "knobs": dict(setting.knobs),
        "fits": tried.fits,
        "all_layers": tried.whole,
        "memory": None if tried.memory is None else tried.memory.to_json(),
        "seconds": None if tried.seconds is None else tried.seconds.to_json(),
        "refused": tried.refused,
    }
