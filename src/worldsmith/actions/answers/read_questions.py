"""The records of a data set as rows of results, and what the model is asked about each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.data.conversations.conversation import Part, Turn, question
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_file import examine
from worldsmith.evaluation.answers.results import Row
from worldsmith.files.fingerprint import content

QUESTION, DURATION = "question", "duration"
"""What divides the data beside the fields of records."""
SECONDS = (2, 5, 10, 30, 60)
"""Where the parts by duration end."""
LETTERS = 80
"""Of a question's words, at most so many name a part."""


@dataclass(slots=True)
class Asked:
    """What there is to ask."""

    rows: list[Row] = field(default_factory=list)
    """One for each record, in the order of the data set."""
    turns: dict[str, Sequence[Turn]] = field(default_factory=dict)
    """The question, by the id of the row; those of records that cannot be used are not there."""
    kinds: dict[str, str] = field(default_factory=dict)
    """What records call their tasks, by id."""

    @property
    def truths(self) -> dict[str, str]:
        """The true answers, by id."""
        return {row.id: row.gt for row in self.rows if row.id in self.turns}

    def share(self, number: int, count: int) -> list[tuple[str, Sequence[Turn]]]:
        """Every `count`-th record from `number` on, of those that can be asked."""
        return [(row.id, self.turns[row.id]) for row in self.rows[number::count] if row.id in self.turns]

    def media(self) -> list[str]:
        """The files that are shown, each once."""
        return list(dict.fromkeys(name for row in self.rows for name in row.media))


def read_records(dataset: ChatDataset, *, limit: int | None, task_field: str, slices: Sequence[str]) -> Asked:
    """Raises UserError when there is nothing to ask, and for a field that no record has."""
    asked, known = Asked(), set[str]()
    for record in islice(dataset.in_order(), limit):
        if isinstance(record, Rejection):
            asked.rows.append(Row(record.key, record.key, reason=f"{record.reason}: {record.detail}"))
            continue
        key, fields = dataset.place(record)[0], dataset.fields(record)
        known |= fields.keys()
        row = Row(key, str(fields.get("id") or key))
        asked.rows.append(row)
        try:
            turns = dataset.turns(record)
        except SampleError as error:
            row.reason = str(error)
            continue
        before = question(turns)
        row.question, row.gt = before[-1].text.strip(), turns[len(before)].text.strip()
        parts = [part for turn in before for part in turn.parts]
        row.media = [str(part.source) for part in parts if is_file(part)]
        row.slice = {name: part_of(name, row, parts, fields) for name in slices}
        asked.turns[key] = before
        if task_field:
            asked.kinds[key] = str(fields.get(task_field, ""))
    if not asked.turns:
        reasons = "; ".join(f"{row.id}: {row.reason}" for row in asked.rows[:3]) or "it has no records"
        raise UserError(f"{dataset.name} has no conversation that can be asked ({reasons})")
    for name in {*slices, *filter(None, [task_field])} - {QUESTION, DURATION} - known:
        raise UserError(f"no record has the field '{name}'; there are: {', '.join(sorted(known)) or 'none'}")
    return asked


def is_file(part: Part) -> bool:
    return part.kind != "text" and isinstance(part.source, str) and not part.source.startswith("data:")


def part_of(name: str, row: Row, parts: Sequence[Part], fields: Mapping[str, Any]) -> str:
    """Which part of the data a record belongs to, when `name` divides them."""
    if name == QUESTION:
        return template(row.question)
    if name == DURATION:
        return duration(next((str(part.source) for part in parts if part.kind == "video"), ""))
    value = fields.get(name)
    return "(none)" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def template(text: str) -> str:
    """A question without its numbers and quotations, which differ from record to record."""
    text = re.sub(r"\"[^\"]*\"|“[^”]*”", "…", text)
    words = re.sub(r"\d+(?:\.\d+)?", "#", " ".join(text.split()))
    return words if len(words) <= LETTERS else f"{words[: LETTERS - 1]}…"


def duration(video: str) -> str:
    """The part by the duration of a video file; "" = there is none."""
    if not video:
        return "no video"
    try:
        seconds = examine(video)[1].duration
    except SampleError:
        return "unreadable"
    least = 0
    for most in SECONDS:
        if seconds < most:
            return f"{least} to {most} s"
        least = most
    return f"{least} s or more"


def mark_of(turns: Sequence[Turn]) -> str:
    """Changes with what is asked: texts, content of media, rates and sizes. Not with names or folders of files, so that
    answers from several machines belong together."""
    facts = [
        [turn.role, [[part.kind, part.text, *source_of(part), part.fps, part.resized] for part in turn.parts]]
        for turn in turns
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def record_key(turns: Sequence[Turn], answer: str, *, quick: bool = False) -> str:
    """Key of a record by its text and media content; file names, frame rates and system prompts do not change it.

    With `quick` media count by their size, which opens no file: records that differ in it are different.
    """
    told = [
        [turn.role, [[p.kind, p.text, *([size_of(p)] if quick else source_of(p))] for p in turn.parts]]
        for turn in turns
        if turn.role != "system"
    ]
    return json.dumps([told, answer])


def size_of(part: Part) -> int:
    """Bytes of a medium; -1 of a file that cannot be read."""
    if not is_file(part):
        return len(part.source)
    try:
        return Path(str(part.source)).stat().st_size
    except (OSError, ValueError):
        return -1


def find_repeated(asked: Asked) -> int:
    """The number of records that show and say the same as an earlier one."""
    return len(asked.turns) - len({record_key(turns, asked.truths[key]) for key, turns in asked.turns.items()})


def find_trained_on(asked: Asked, trained: ChatDataset) -> int:
    """The number of records that are in the training data too; only media of the same size are read."""
    truths = asked.truths
    likely = {record_key(turns, truths[key], quick=True) for key, turns in asked.turns.items()}
    found = set[str]()
    for index in range(len(trained)):
        try:
            turns = trained.turns(index)
        except SampleError:
            continue
        before = question(turns)
        answer = turns[len(before)].text.strip()
        if record_key(before, answer, quick=True) in likely:
            found.add(record_key(before, answer))
    return sum(record_key(turns, truths[key]) in found for key, turns in asked.turns.items())


def source_of(part: Part) -> tuple[str, int]:
    """SHA-256 and size of a medium; name and -1 of a file that cannot be read. An unchanged file is read once."""
    if not is_file(part):
        data = part.source if isinstance(part.source, bytes) else part.source.encode()
        return hashlib.sha256(data).hexdigest(), len(data)
    file = Path(str(part.source))
    try:
        return (content(file), file.stat().st_size) if file.is_file() else (file.name, -1)
    except (OSError, ValueError):
        return file.name, -1
