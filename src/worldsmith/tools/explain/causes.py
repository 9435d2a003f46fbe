"""Finds the known errors in streams of lines, each once, the cause before what it has led to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from worldsmith.files.errors import CODE
from worldsmith.tools.explain.logs import Line, Stream
from worldsmith.tools.explain.patterns import ErrorPattern, candidates, patterns

TRACEBACK = "Traceback (most recent call last):"
LINKS = ("The above exception was the direct cause", "During handling of the above exception")
"""What stands between an exception and the next one that it has led to."""
FRAME = re.compile(r'^(\s+)File "[^"]*", line \d+')
RAISED = re.compile(r"^\s*(?:[\w.]+\.)?[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b|^\s*[\w.]+\.[A-Z]\w*: ")
"""The line with which a traceback ends."""
ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): \S")
"""An error that stands alone, without its traceback."""
BOX = re.compile(r"^\s*╭.*Traceback \(most recent call last\)|^\w+ +Traceback \(most recent call last\)$")
"""The first line of a traceback by rich (a box) or IPython, which show the lines of programs in other ways."""
IN_BOX = re.compile(
    r"^\s*[│╰]|^(?:-+> ?)?\s*\d+ |^(?:File|Cell) .*\bline\b|^(?:File|Cell) .*:\d+|^\s*(?:\(\.\.\.\))?\s*$"
)
NOTEBOOK_FRAME = re.compile(r"^(?:File |Cell )?[~/\[<A-Z]\S*\.py\b.*\bin\b")
"""How IPython shows a frame."""
HANDED_ON = re.compile(
    r"[\\/]torch[\\/](?:nn[\\/]modules[\\/]module|utils[\\/]_contextlib)\.py|[\\/](?:contextlib|functools)\.py"
)
"""Traceback frames that only forward a call; the error was raised by the frame before them."""
FIRST_FAILED = re.compile(r"Root Cause \(first observed failure\)")
RANK = re.compile(r"^\s*rank *: (\d+)")
"""How torchrun reports the rank that failed first."""
TELLING = re.compile(r"rr(?:or|no)|\[E\d|xit|ignal|kill|[Vv]al|trainable|num_|return code|do not match")
"""Lines in which a number may make the difference. Others are the same whatever numbers they hold."""
DIGITS = re.compile(r"\d+")


class LogPosition(NamedTuple):
    """Where a line stands."""

    source: str
    line: int
    rank: int | None


@dataclass(slots=True)
class Cause:
    """One error of a log, wherever and however often it stands there."""

    pattern: ErrorPattern
    text: str = ""
    """The line that shows it best: that of the last traceback, if there is one."""
    groups: Mapping[str, str] = field(default_factory=dict)
    order: tuple[int, bool, int, int] = (9, False, 0, 0)
    """How far from being the cause the line is (0: in the last chain of exceptions), whether another rank failed first,
    its stream, its line."""
    places: list[LogPosition] = field(default_factory=list)

    @property
    def place(self) -> LogPosition:
        return min(self.places, key=lambda place: (place.line != self.order[-1], place.source))

    @property
    def ranks(self) -> list[int]:
        return sorted({place.rank for place in self.places if place.rank is not None})


class Hit(NamedTuple):
    """A line that shows a pattern, in the numbered chain of exceptions that it stands in or after."""

    pattern: int
    line: Line
    groups: Mapping[str, str]
    chain: int


def find_causes(streams: Sequence[Stream]) -> list[Cause]:
    """What the streams show: causes first, each chain of exceptions from its root, then consequences."""
    found: dict[int, Cause] = {}
    seen: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    sources = list(dict.fromkeys(stream.source for stream in streams))
    first = first_failed(streams)
    for stream in streams:
        hits = list(hits_in(stream, seen))
        last = max((hit.chain for hit in hits if not patterns()[hit.pattern].consequence), default=0)
        for hit in hits:
            cause = found.setdefault(hit.pattern, Cause(patterns()[hit.pattern]))
            cause.places.append(LogPosition(stream.source, hit.line.number, stream.rank))
            ends_it = hit.chain == last and (hit.chain > 0 or "rror" in hit.line.text)
            distance = 2 if cause.pattern.consequence else int(not ends_it)
            later = None not in (first, stream.rank) and stream.rank != first
            order = distance, later, sources.index(stream.source), hit.line.number
            if order < cause.order:
                cause.order, cause.text, cause.groups = order, hit.line.text.strip(), hit.groups
    meant = {id: cause for id, cause in found.items() if is_meant(cause, streams)}
    less = {other for cause in meant.values() for other in cause.pattern.over}
    causes = sorted((cause for id, cause in meant.items() if id not in less), key=lambda cause: cause.order)
    known = any(not (cause.pattern.fallback or cause.pattern.consequence) for cause in causes)
    doubts = [cause for cause in causes if cause.pattern.fallback]
    return [cause for cause in causes if not cause.pattern.fallback or (not known and cause is doubts[0])]


def first_failed(streams: Sequence[Stream]) -> int | None:
    """Rank that failed first, as torchrun reports it; None if no stream has such a report."""
    for stream in streams:
        inside = False
        for line in stream.lines:
            inside = inside or FIRST_FAILED.search(line.text) is not None
            if inside and (rank := RANK.match(line.text)):
                return int(rank[1])
    return None


def hits_in(stream: Stream, seen: dict[str, list[tuple[int, Mapping[str, str]]]]) -> Iterator[Hit]:
    """`seen` is what lines have shown so far, by `shape`. A line that shows a known error raises no doubt."""
    chain, linked = 0, False
    for line, frame in with_frames(stream.lines):
        if starts_traceback(line.text):
            chain, linked = chain + (not linked), False
        linked = linked or line.text.strip().startswith(LINKS)
        key = shape(line.text)
        if key not in seen:
            seen[key] = list(shown_by(line.text))
        shown = [(patterns()[id], groups) for id, groups in seen[key] if patterns()[id].is_raised_in(frame)]
        known = any(not pattern.fallback and not pattern.needs for pattern, _ in shown)
        for pattern, groups in shown:
            if not (pattern.fallback and known):
                yield Hit(pattern.id, line, groups, chain)


def without_code(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines but for those of programs that a traceback shows: a message there has not been raised."""
    return (line for line, _ in with_frames(lines))


def with_frames(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """The lines as `without_code` gives them, each with the last frame before it, empty if there is none."""
    code, in_box, last = None, False, ""
    for line in lines:
        if in_box and IN_BOX.match(line.text):
            last = line.text if NOTEBOOK_FRAME.match(line.text) else last
            continue
        in_box = BOX.match(line.text) is not None
        if frame := FRAME.match(line.text):
            code = f"{frame[1]} "
            last = last if HANDED_ON.search(line.text) else line.text
        elif code is not None and line.text.startswith(code):
            continue
        else:
            code = None
            yield line, last
            last = "" if RAISED.match(line.text) else last


def starts_traceback(text: str) -> bool:
    return text.strip() == TRACEBACK or BOX.match(text) is not None


def shape(text: str) -> str:
    """What is alike in lines that show the same."""
    return text if TELLING.search(text) else DIGITS.sub("#", text)


def shown_by(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Finds the patterns of a line: those of its codes, else of its text; groups are what the expressions have found.

    A pattern that is `over` the one of a code is more specific, and is found next to it.
    """
    codes = {id for id in map(int, CODE.findall(text)) if id in patterns()}
    yield from ((id, patterns()[id].groups_in(text) or {}) for id in sorted(codes))
    for pattern in candidates(text):
        if codes and (pattern.id in codes or codes.isdisjoint(pattern.over)):
            continue
        if (groups := pattern.groups_in(text)) is not None:
            yield pattern.id, groups


def is_meant(cause: Cause, streams: Sequence[Stream]) -> bool:
    """Whether the rest of the log agrees."""
    pattern = cause.pattern
    if len(cause.places) < pattern.at_least:
        return False
    texts = (line.text for stream in streams for line in stream.lines)
    return not pattern.needs or any(regex.search(text) for text in texts for regex in pattern.needs)


def last_error(streams: Sequence[Stream]) -> tuple[str, LogPosition] | None:
    """The root of the last chain of exceptions, or the last error without one: what it says and where, if any."""
    found, alone = None, None
    for stream in streams:
        inside, linked = False, False
        for line in without_code(stream.lines):
            if starts_traceback(line.text):
                inside, linked = not linked, False
            elif line.text.strip().startswith(LINKS):
                linked = True
            elif inside and RAISED.match(line.text):
                found = line.text.strip(), LogPosition(stream.source, line.number, stream.rank)
                inside = False
            elif ERROR.match(line.text):
                alone = line.text.strip(), LogPosition(stream.source, line.number, stream.rank)
    return found or alone
