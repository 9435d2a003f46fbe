"""Reads logs as streams of lines, one stream per process that wrote to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from worldsmith.monitor.page.run_files import RunFiles, read_run
from worldsmith.monitor.page.status import AT_WORK, MEANING, find_status, when
from worldsmith.monitor.process_log import FOLDER, TERMINAL_CODES

PREFIX = re.compile(
    r"^(?!\[E\d+\] )"
    r"(?:\[(?:rank|default|[\w.-]*[A-Za-z_.-])(?P<torchrun>\d+)\]:? ?|\[\d+,(?P<mpi>\d+)\]<std(?:err|out)>:? ?)"
)
"""Prefixes that torch, torchrun and mpirun add to the lines of a rank; error codes do not match."""
LABEL = re.compile(r"^\s{0,4}(\d{1,4}): ")
"""Prefix that `srun --label` adds."""
START = re.compile(r"^--- started \S+ on .*, rank (\d+) of \d+")
"""Line that Worldsmith writes at the start of a process, in a log file to which all starts are appended."""
OF_A_RANK = re.compile(r"rank_(\d+)\.log$|(?:^|/)(\d+)/std(?:err|out)\.log$")


class Line(NamedTuple):
    """Log line: its number in the file, and its text without the prefix that names the rank."""

    number: int
    text: str


@dataclass(slots=True)
class Stream:
    """Output of one process, or of all processes if lines cannot be attributed (`rank` None)."""

    source: str
    rank: int | None
    lines: list[Line] = field(default_factory=list)


def read_log(path: Path) -> list[Stream]:
    """Returns the streams of a log file, by rank, from the last start only. Raises OSError if it cannot be read."""
    found = OF_A_RANK.search(path.as_posix())
    rank = int(found[1] or found[2]) if found else None
    return split(path.read_bytes().decode(errors="replace"), str(path), rank)


def split(text: str, source: str, rank: int | None = None) -> list[Stream]:
    """Splits the text of a log into one stream per rank, sorted by rank; only the last start of a rank is kept.

    Args:
        text: Content of a log.
        source: Name of the log.
        rank: Rank of lines without a rank prefix; None: unknown.
    """
    lines = [
        TERMINAL_CODES.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in text.removesuffix("\n").split("\n")
    ]
    labelled = sum(LABEL.match(line) is not None for line in lines) > len(lines) // 2
    streams: dict[int | None, Stream] = {}
    for number, line in enumerate(lines, 1):
        own, label = rank, PREFIX.match(line) or (labelled and LABEL.match(line))
        if start := START.match(line):
            own = rank = int(start[1])
            streams[own] = Stream(source, own)
        elif label:
            own, line = int(next(group for group in label.groups() if group is not None)), line[label.end() :]
        streams.setdefault(own, Stream(source, own)).lines.append(Line(number, line))
    return [streams[rank] for rank in sorted(streams, key=lambda rank: -1 if rank is None else rank)]


def read_logs_of(folder: Path) -> list[Stream]:
    """Returns streams from the last start of the run in `folder`: output of its ranks, messages and status.

    Raises UserError if the folder is not a run folder.
    """
    run = read_run(folder)
    logs = [stream for path in sorted((folder / FOLDER).glob("rank_*.log")) for stream in read_log(path)]
    return [*logs, *messages_of(run), *state_of(run)]


def messages_of(run: RunFiles) -> Iterator[Stream]:
    """Yields one stream with the warnings and errors of a run's last start, from messages.jsonl."""
    started, place = when(run.launch.get("started_at")), run.folder / "messages.jsonl"
    stream = Stream(str(place), 0)
    for number, entry in enumerate(place.read_text(errors="replace").splitlines() if place.exists() else [], 1):
        try:
            message = json.loads(entry)
            time, level, text = when(message["time"]), message["level"], message["text"]
        except (ValueError, KeyError, TypeError):
            continue
        if level != "info" and not (started and time and time < started):
            word = f"{level}: " if level == "error" else ""
            stream.lines += [Line(number, f"{word}{line}") for line in str(text).splitlines()]
    yield stream


def state_of(run: RunFiles) -> Iterator[Stream]:
    """Yields a stream with the reason of a run's failure, or that the process vanished, from its status.

    Yields nothing for a run that is running, finished, stopped or interrupted.
    """
    status = find_status(run)
    if status.state not in AT_WORK and status.state not in ("finished", "stopped", "interrupted"):
        text = f"error: {status.reason}" if status.reason else MEANING[status.state]
        yield Stream(str(run.folder / "status.json"), None, [Line(1, text)])
