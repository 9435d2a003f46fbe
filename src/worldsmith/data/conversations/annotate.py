"""Rates of videos written into a copy of a data set's records, each from the stream of its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from worldsmith.data.conversations.datasets.chat_file import ChatFile, Entry
from worldsmith.data.conversations.datasets.llava import TURNS, WRAPPERS, LlavaDataset
from worldsmith.data.conversations.media.frames_and_sizes import rates_differ
from worldsmith.data.json_records import read_lines, records_in
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.video_file import VideoInfo, examine

FPS, ORIGIN = "video_fps", "video_fps_from"
STREAM = "stream"
"""The origin of a rate that was read from the file."""
READERS = 8


@dataclass(slots=True)
class Annotated:
    """A copy of a file of records. The lists have number (`index`), `key` and `detail` of records."""

    text: str = ""
    added: int = 0
    stated: int = 0
    """Records that stated a rate, which was left as it is."""
    replaced: int = 0
    without_video: int = 0
    not_records: int = 0
    """What no run can use, and was copied as it is."""
    disagrees: list[dict[str, Any]] = field(default_factory=list)
    """Stated rates that the streams do not have."""
    unreadable: list[dict[str, Any]] = field(default_factory=list)
    """Videos that cannot be read, or have different rates in one record: nothing was added."""
    uneven: list[dict[str, Any]] = field(default_factory=list)
    """Unevenly spaced frames, whose average rate was added: a model is then told even times."""


def annotate(dataset: ChatFile, *, replace: bool, shown: Callable[[int, int], None] | None = None) -> Annotated:
    """The records of a data set with `video_fps`, and with `video_fps_from` where it was added.

    A stated rate that disagrees with the stream stays unless `replace`. `shown` is called with (done, all).
    """
    dataset.open_media()
    done = Annotated(not_records=dataset.num_records - len(dataset.entries))
    changed: dict[int, dict[str, Any]] = {}
    with ThreadPoolExecutor(READERS) as pool:
        looks = pool.map(lambda entry: rate_of(dataset, entry), dataset.entries)
        for number, (entry, found) in enumerate(zip(dataset.entries, looks), start=1):
            record = entry.record if isinstance(entry.record, dict) else {"messages": entry.record}
            rate = choose_rate(done, entry, record, found, replace=replace)
            if rate is not None:
                changed[entry.number] = {**record, FPS: rate, ORIGIN: STREAM}
            if shown is not None:
                shown(number, len(dataset.entries))
    done.text = rewritten(dataset, changed)
    return done


def rate_of(dataset: ChatFile, entry: Entry) -> list[VideoInfo] | str:
    """What the streams of a record say, or why they cannot be read."""
    sources = [part.source for turn in dataset.parse(entry.record) for part in turn.parts if part.kind == "video"]
    try:
        return [examine(str(source))[1] for source in sources]
    except SampleError as error:
        return str(error)


def choose_rate(
    done: Annotated, entry: Entry, record: dict[str, Any], found: Sequence[VideoInfo] | str, *, replace: bool
) -> float | None:
    """The rate that a record is given, if any; counts why."""
    known: dict[str, Any] = {"index": entry.number, "key": entry.key}
    stated = record.get(FPS)
    if not entry.shows_video:
        done.without_video += 1
        return None
    rates = [info.fps for info in found if isinstance(info, VideoInfo)]
    if isinstance(found, str) or rates_differ(min(rates), max(rates)):
        why = found if isinstance(found, str) else f"its videos have different rates: {', '.join(map(str, rates))}"
        done.unreadable.append({**known, "detail": why})
        done.stated += stated is not None
        return None
    if stated is not None:
        other = rates_differ(stated, rates[0])
        if other:
            done.disagrees.append({**known, "detail": f"states {stated:g}, the stream has {rates[0]:g}"})
        done.stated += not (other and replace)
        done.replaced += other and replace
        if not (other and replace):
            return None
    else:
        done.added += 1
    if any(info.variable_rate for info in found if isinstance(info, VideoInfo)):
        done.uneven.append({**known, "detail": f"its frames are unevenly spaced, {rates[0]:g} a second on average"})
    return rates[0]


def rewritten(dataset: ChatFile, changed: dict[int, dict[str, Any]]) -> str:
    """The file with these records in place of the old ones; all else as it is."""
    if not isinstance(dataset, LlavaDataset):
        lines = [line.decode(errors="surrogateescape").rstrip("\r\n") for _, line in read_lines(dataset.file)]
        return "".join((written(changed[n]) if n in changed else line) + "\n" for n, line in enumerate(lines))
    container = json.loads(dataset.file.read_bytes())
    records = records_in(container, WRAPPERS, TURNS)
    for number, record in changed.items():
        records[number] = record
    return written(records[0] if isinstance(container, dict) and TURNS in container else container, indent=1) + "\n"


def written(value: Any, indent: int | None = None) -> str:
    """JSON with its letters as they are, where they are letters."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, indent=indent)
    return text
