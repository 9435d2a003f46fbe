"""Finds known errors (patterns/*.toml) in log streams, each once, the cause before its consequences."""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from worldsmith.files.errors import CODE
from worldsmith.tools.explain.logs import Line, Stream

TRACEBACK = "Traceback (most recent call last):"
LINKS = ("The above exception was the direct cause", "During handling of the above exception")
"""Beginnings of the lines that Python prints between two exceptions of a chain."""
FRAME = re.compile(r'^(\s+)File "[^"]*", line \d+')
RAISED = re.compile(r"^\s*(?:[\w.]+\.)?[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure)\b|^\s*[\w.]+\.[A-Z]\w*: ")
"""Matches the last line of a traceback."""
ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): \S")
"""Matches an error line without a traceback."""
BOX = re.compile(r"^\s*╭.*Traceback \(most recent call last\)|^\w+ +Traceback \(most recent call last\)$")
"""Matches the first line of a traceback by rich (a box) or IPython, which print program lines differently."""
IN_BOX = re.compile(
    r"^\s*[│╰]|^(?:-+> ?)?\s*\d+ |^(?:File|Cell) .*\bline\b|^(?:File|Cell) .*:\d+|^\s*(?:\(\.\.\.\))?\s*$"
)
NOTEBOOK_FRAME = re.compile(r"^(?:File |Cell )?[~/\[<A-Z]\S*\.py\b.*\bin\b")
"""Matches a stack frame as IPython prints it."""
HANDED_ON = re.compile(
    r"[\\/]torch[\\/](?:nn[\\/]modules[\\/]module|utils[\\/]_contextlib)\.py|[\\/](?:contextlib|functools)\.py"
)
"""Matches traceback frames that only forward a call; the frame before them is taken as the origin of the error."""
FIRST_FAILED = re.compile(r"Root Cause \(first observed failure\)")
RANK = re.compile(r"^\s*rank *: (\d+)")
"""Matches the line of torchrun's report that contains the rank that failed first."""
TELLING = re.compile(r"rr(?:or|no)|\[E\d|xit|ignal|kill|[Vv]al|trainable|num_|return code|do not match")
"""Matches lines whose numbers are significant; other lines are compared without their numbers."""
DIGITS = re.compile(r"\d+")
LOWER_CASE = re.compile(r"\W*(?:[a-z_]\w*\.)*[a-z]\w*(?:error|exception): ")
"""Matches an error message whose type is in lower case."""
GRAM = 4
"""Length of the substrings by which `candidates` finds patterns."""


class LogPosition(NamedTuple):
    """Position of a line in a log: name of the log, line number, and rank of the process (None: unknown)."""

    source: str
    line: int
    rank: int | None


@dataclass(slots=True)
class Cause:
    """Known error in a log, with all its occurrences."""

    pattern: ErrorPattern
    text: str = ""
    """Log line that shows the error best: from the last traceback if possible."""
    groups: Mapping[str, str] = field(default_factory=dict)
    order: tuple[int, bool, int, int] = (9, False, 0, 0)
    """Sort key: distance (0: in the last exception chain; 1: elsewhere; 2: only a consequence), whether another rank
    failed first, index of the stream, line number."""
    places: list[LogPosition] = field(default_factory=list)

    @property
    def place(self) -> LogPosition:
        """Position of the log line that this error is shown with (`text`)."""
        return min(self.places, key=lambda place: (place.line != self.order[-1], place.source))

    @property
    def ranks(self) -> list[int]:
        """Ranks on which the error occurred, sorted."""
        return sorted({place.rank for place in self.places if place.rank is not None})


class Hit(NamedTuple):
    """Log line that matches an error pattern, with the number of the exception chain (0: before the first one)."""

    pattern: int
    line: Line
    groups: Mapping[str, str]
    chain: int


def find_causes(streams: Sequence[Stream]) -> list[Cause]:
    """Finds the known errors in logs: root causes first, then consequences.

    Args:
        streams: Output of the processes of one run, or of one log file.

    Returns:
        The errors, each once. Ambiguous patterns (`fallback`) are included only if no other root cause is found, and
        then only the first of them.
    """
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
    meant = {id: cause for id, cause in found.items() if is_confirmed(cause, streams)}
    less = {other for cause in meant.values() for other in cause.pattern.over}
    causes = sorted((cause for id, cause in meant.items() if id not in less), key=lambda cause: cause.order)
    known = any(not (cause.pattern.fallback or cause.pattern.consequence) for cause in causes)
    doubts = [cause for cause in causes if cause.pattern.fallback]
    return [cause for cause in causes if not cause.pattern.fallback or (not known and cause is doubts[0])]


def first_failed(streams: Sequence[Stream]) -> int | None:
    """Returns the rank that failed first according to torchrun's report in the logs; None without such a report."""
    for stream in streams:
        inside = False
        for line in stream.lines:
            inside = inside or FIRST_FAILED.search(line.text) is not None
            if inside and (rank := RANK.match(line.text)):
                return int(rank[1])
    return None


def hits_in(stream: Stream, seen: dict[str, list[tuple[int, Mapping[str, str]]]]) -> Iterator[Hit]:
    """Yields the lines of a stream that match error patterns.

    Args:
        stream: Output of a process.
        seen: Cache, extended in place: key of a line (from `line_key`) → (pattern id, named groups) of its matches.
    """
    chain, linked = 0, False
    for line, frame in with_frames(stream.lines):
        if starts_traceback(line.text):
            chain, linked = chain + (not linked), False
        linked = linked or line.text.strip().startswith(LINKS)
        key = line_key(line.text)
        if key not in seen:
            seen[key] = list(match_patterns(line.text))
        shown = [(patterns()[id], groups) for id, groups in seen[key] if patterns()[id].is_raised_in(frame)]
        known = any(not pattern.fallback and not pattern.needs for pattern, _ in shown)
        for pattern, groups in shown:
            if not (pattern.fallback and known):
                yield Hit(pattern.id, line, groups, chain)


def without_code(lines: Iterable[Line]) -> Iterator[Line]:
    """Yields the lines of a log without traceback frames and their source code.

    Source code can contain error messages that were not raised.
    """
    return (line for line, _ in with_frames(lines))


def with_frames(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Yields the lines of `without_code`, each with the last traceback frame before it, or "" without one."""
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
    """Returns whether a line is the first line of a traceback."""
    return text.strip() == TRACEBACK or BOX.match(text) is not None


def line_key(text: str) -> str:
    """Returns a key of a log line; lines that differ only in insignificant numbers have the same key."""
    return text if TELLING.search(text) else DIGITS.sub("#", text)


def match_patterns(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yields (pattern id, named groups) of the error patterns that a log line matches.

    If the line contains error codes, such as [E103], they select the patterns. The text of the line then only adds
    patterns that are more specific than those (field `over`). Without a code, the text selects the patterns.
    """
    codes = {id for id in map(int, CODE.findall(text)) if id in patterns()}
    yield from ((id, patterns()[id].groups_in(text) or {}) for id in sorted(codes))
    for pattern in candidates(text):
        if codes and (pattern.id in codes or codes.isdisjoint(pattern.over)):
            continue
        if (groups := pattern.groups_in(text)) is not None:
            yield pattern.id, groups


def is_confirmed(cause: Cause, streams: Sequence[Stream]) -> bool:
    """Returns whether the logs confirm a cause, by the conditions `at_least` and `needs` of its pattern.

    At least `at_least` lines must match the pattern. If `needs` has expressions, a line must match one of them.
    """
    pattern = cause.pattern
    if len(cause.places) < pattern.at_least:
        return False
    texts = (line.text for stream in streams for line in stream.lines)
    return not pattern.needs or any(regex.search(text) for text in texts for regex in pattern.needs)


def last_error(streams: Sequence[Stream]) -> tuple[str, LogPosition] | None:
    """Returns text and position of the last error in logs, known or not; None without any error.

    It is the first exception of the last exception chain, or the last error line if there is no traceback.
    """
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


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """Known error: the log lines that show it, its meaning and its fixes, as in a row of patterns/*.toml."""

    id: int
    name: str
    match: tuple[re.Pattern[str], ...]
    """Regular expressions; a log line that contains a match of one shows the error. `remedies` may use named groups."""
    parts: tuple[str, ...]
    """Fixed text of each expression: a line without it cannot match, and a substring search is faster."""
    means: str
    remedies: tuple[str, ...]
    """Fixes, most likely first, as templates of `explanation.render_remedy`."""
    needs: tuple[re.Pattern[str], ...] = ()
    """Regular expressions; one of them must match some line of the logs. Empty: no condition."""
    raised_in: tuple[re.Pattern[str], ...] = ()
    """If not empty, the traceback frame that raised the error must match one of these expressions."""
    less: tuple[str, ...] = ()
    """Two named groups or none: a line matches only if the number in the first group is smaller."""
    over: tuple[int, ...] = ()
    """Ids of less specific error patterns, which are not reported if this pattern is found."""
    at_least: int = 1
    """Min number of matching lines."""
    consequence: bool = False
    """Whether the error is always a consequence of another error, usually in another process."""
    fallback: bool = False
    """Whether the pattern is reported only if no other cause is found, because its text fits several causes."""
    facts: tuple[str, ...] = ()
    """Names (keys of `facts.FACTS`) of the facts about the run to show."""

    def groups_in(self, text: str) -> Mapping[str, str] | None:
        """Returns the named groups of the first expression that matches a log line; None if no expression matches."""
        if is_lower_case(text):
            found = (regex.search(text) for regex in ignore_case(self.match))
        else:
            found = (regex.search(text) for part, regex in zip(self.parts, self.match, strict=True) if part in text)
        if match := next(filter(None, found), None):
            groups = {name: value for name, value in match.groupdict().items() if value is not None}
            return groups if self.is_less(groups) else None
        return None

    def is_raised_in(self, frame: str) -> bool:
        """Returns whether the error pattern allows an error from this traceback frame ("" if the frame is unknown)."""
        return not self.raised_in or any(regex.search(frame) for regex in self.raised_in)

    def is_less(self, groups: Mapping[str, str]) -> bool:
        """Returns whether the condition `less` of this pattern is true: its first number is smaller than its second.

        `less` names the two numbers in `groups`, the named groups of a match. True if one of them is missing.
        """
        numbers = [int(groups[name]) for name in self.less if name in groups]
        return len(numbers) < 2 or numbers[0] < numbers[1]


@functools.cache
def ignore_case(expressions: tuple[re.Pattern[str], ...]) -> tuple[re.Pattern[str], ...]:
    """Returns the regular expressions compiled without case sensitivity."""
    return tuple(re.compile(regex.pattern, re.IGNORECASE) for regex in expressions)


@functools.cache
def patterns() -> Mapping[int, ErrorPattern]:
    """Returns all error patterns by id: up to 58 for errors of Cosmos-RL and TAO, from 101 for all others."""
    files = sorted((Path(__file__).parent / "patterns").glob("*.toml"))
    rows = [row for file in files for row in tomllib.loads(file.read_text(encoding="utf-8"))["pattern"]]
    return {row["id"]: build_pattern(**row) for row in rows}


@functools.cache
def index_patterns() -> tuple[Mapping[str, Sequence[int]], Sequence[int]]:
    """Returns an index of the error patterns, to find the candidates for a log line quickly.

    Returns:
        Substring of length `GRAM` → ids of patterns with a fixed text that contains it (each text is indexed once, by
        its rarest substring), and ids of patterns with an expression without such a text.
    """
    grams_of = {part: grams(part) for pattern in patterns().values() for part in pattern.parts}
    count = Counter(gram for of_part in grams_of.values() for gram in of_part)
    index: dict[str, list[int]] = {}
    always = []
    for id, pattern in patterns().items():
        for part in pattern.parts:
            if grams_of[part]:
                index.setdefault(min(sorted(grams_of[part]), key=count.__getitem__), []).append(id)
            else:
                always.append(id)
    return index, always


def grams(text: str) -> set[str]:
    """Returns all substrings of length `GRAM` of a text."""
    return {text[start : start + GRAM] for start in range(len(text) - GRAM + 1)}


def candidates(text: str) -> Iterable[ErrorPattern]:
    """Returns the error patterns that a log line may match, in the order of the pattern table.

    This prefilter never omits a pattern that matches. For a line for which `is_lower_case` is True, all patterns are
    returned.
    """
    if is_lower_case(text):
        return patterns().values()
    index, always = index_patterns()
    ids = set(always).union(*(index[gram] for gram in grams(text) if gram in index))
    return [pattern for id, pattern in patterns().items() if id in ids]


def is_lower_case(text: str) -> bool:
    """Returns whether a log line is an error written in lower case, such as the title of a forum thread."""
    return LOWER_CASE.match(text) is not None and text == text.lower()


def build_pattern(*, match: Sequence[str], **row: Any) -> ErrorPattern:
    """Builds an error pattern from a `[[pattern]]` table of a TOML file, whose keys are passed as arguments.

    The keys `with` and `try` become `needs` and `remedies`. Raises TypeError for an unknown key.
    """
    row |= {"match": match, "parts": map(fixed_part, match), "remedies": row.pop("try"), "needs": row.pop("with", ())}
    for name in ("match", "needs", "raised_in"):
        row[name] = map(re.compile, row.get(name, ()))
    values: dict[str, Any] = {
        name: value if isinstance(value, int | str) else tuple(value) for name, value in row.items()
    }
    return ErrorPattern(**values)


def fixed_part(expression: str) -> str:
    """Returns the longest text that occurs in every match of a regular expression; "" if no text is certain."""
    runs, depth, i = [""], 0, 0
    if "(?i" in expression:
        return ""
    while i < len(expression):
        char, i = expression[i], i + 1
        if char == "[":
            i = expression.index("]", i + 1) + 1
            runs.append("")
        elif char in "()":
            depth += 1 if char == "(" else -1
            runs.append("")
        elif char == "|" and depth == 0:
            return ""
        elif char in "?*{":
            runs[-1:] = [runs[-1][:-1], ""]
            if char == "{":
                i = expression.index("}", i) + 1
        elif char == "\\":
            char, i = expression[i], i + 1
            if char.isalnum() or depth:
                runs.append("")
            else:
                runs[-1] += char
        elif char in ".^$+" or depth:
            runs.append("")
        else:
            runs[-1] += char
    return max(runs, key=len)
