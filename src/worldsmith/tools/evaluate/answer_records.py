"""Records of an evaluation of answers: the questions of a dataset, and the results."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from worldsmith.actions.action import Result
from worldsmith.config.errors import UserError
from worldsmith.data.content_fingerprint import READERS
from worldsmith.data.conversations.conversation import Part, Turn, question
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import examine
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.evaluation.answers.results import METRICS, RESULTS, Row, write_results
from worldsmith.evaluation.answers.saved_answers import is_file, media_fingerprint, media_size
from worldsmith.files.atomic import write_text
from worldsmith.monitor.page.run_page import refresh_page

BLOCK = 1000
"""Number of training records that are compared at a time."""
QUESTION, DURATION = "question", "duration"
"""Names of the slices that are computed from the question and its video; any other slice is a record field."""
SECONDS = (2, 5, 10, 30, 60)
"""Upper bounds of the video duration ranges of the slice "duration", in seconds."""
LETTERS = 80
"""Max length, in characters, of a shortened question by which results are grouped (slice "question")."""
CONFUSION, ITEMS, DIRECTIONALITY = "confusion.png", "items", "directionality_score.json"
NAMES = {"binary": "yes/no accuracy", "text": "exact match"}
"""Name of the accuracy in the last output line, by task type."""
BESIDE = (
    "balanced_accuracy", "precision", "recall", "f1", "soft_accuracy", "token_f1", "bleu", "rouge1", "rouge2", "rougeL",
    "rougeLsum", "bertscore_f1", "mean_absolute_error", "spearman_correlation", "majority_baseline",
    "final_weighted_score",
)  # fmt: skip


@dataclass(slots=True)
class EvaluationRecords:
    """Records of a dataset to evaluate: the questions by record id, and one result row per record."""

    rows: list[Row] = field(default_factory=list)
    """One row per record, in dataset order."""
    turns: dict[str, Sequence[Turn]] = field(default_factory=dict)
    """The turns of each question, by row id; records that cannot be used are missing."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Task types that the records state, by row id."""

    @property
    def truths(self) -> dict[str, str]:
        """The ground-truth answers by record id."""
        return {row.id: row.gt for row in self.rows if row.id in self.turns}

    def shard(self, number: int, count: int) -> list[tuple[str, Sequence[Turn]]]:
        """Returns (id, turns of the question) of the usable records of process `number` of `count` processes.

        These are every `count`-th record from index `number`.
        """
        return [(row.id, self.turns[row.id]) for row in self.rows[number::count] if row.id in self.turns]

    def media(self) -> list[str]:
        """Returns the distinct media files of all questions."""
        return list(dict.fromkeys(name for row in self.rows for name in row.media))


def read_records(
    dataset: ChatDataset, *, limit: int | None, task_field: str, slices: Sequence[str]
) -> EvaluationRecords:
    """Reads the questions and the ground truth of a dataset.

    Args:
        dataset: Dataset of conversations; the last answer is the ground truth.
        limit: Read only the first N records; None: all.
        task_field: Record field with the task type; "": not used.
        slices: Slices by which the accuracy is reported: "question", "duration" or names of record fields.

    Raises:
        UserError: If no record can be used, or if no record has a field that `task_field` or `slices` name.
    """
    asked, known = EvaluationRecords(), set[str]()
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
        row.slice = {name: slice_value(name, row, parts, fields) for name in slices}
        asked.turns[key] = before
        if task_field:
            asked.kinds[key] = str(fields.get(task_field, ""))
    if not asked.turns:
        reasons = "; ".join(f"{row.id}: {row.reason}" for row in asked.rows[:3]) or "it has no records"
        raise UserError(f"{dataset.name} has no conversation with a question ({reasons})")
    for name in {*slices, *filter(None, [task_field])} - {QUESTION, DURATION} - known:
        raise UserError(f"no record has the field '{name}'; available fields: {', '.join(sorted(known)) or 'none'}")
    return asked


def slice_value(name: str, row: Row, parts: Sequence[Part], fields: Mapping[str, Any]) -> str:
    """Returns the value of a record for a slice, by which the accuracy is reported.

    Args:
        name: Name of the slice: "question", "duration" or a record field.
        row: Row of the record.
        parts: Parts of the question, such as videos.
        fields: Fields of the record.
    """
    if name == QUESTION:
        return question_template(row.question)
    if name == DURATION:
        return duration_range(next((str(part.source) for part in parts if part.kind == "video"), ""))
    value = fields.get(name)
    return "(none)" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def question_template(text: str) -> str:
    """Returns a shortened question with "#" for each number and "…" for each quotation, to group similar questions."""
    text = re.sub(r"\"[^\"]*\"|“[^”]*”", "…", text)
    words = re.sub(r"\d+(?:\.\d+)?", "#", " ".join(text.split()))
    return words if len(words) <= LETTERS else f"{words[: LETTERS - 1]}…"


def duration_range(video: str) -> str:
    """Returns the duration range of the video file `video`, such as "5 to 10 s"; "no video" if `video` is ""."""
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


def record_key(turns: Sequence[Turn], answer: str, *, quick: bool = False) -> str:
    """Returns a key that is equal for records with the same question, media content and answer.

    File names, frame rates and system prompts do not affect the key. With `quick`, only the size of a media file
    affects it, so that no file is opened.
    """
    contents = [
        [turn.role, [[p.kind, p.text, *([media_size(p)] if quick else media_fingerprint(p))] for p in turn.parts]]
        for turn in turns
        if turn.role != "system"
    ]
    return json.dumps([contents, answer])


def count_repeated(records: EvaluationRecords) -> int:
    """Returns the number of usable records with the same question, media and answer as an earlier record."""
    return len(records.turns) - len({record_key(turns, records.truths[key]) for key, turns in records.turns.items()})


def count_trained_on(records: EvaluationRecords, trained: ChatDataset) -> int:
    """Returns the number of records that are also in the training data `trained`.

    Only media files of equal size are compared by content.
    """
    truths = records.truths
    likely = {record_key(turns, truths[key], quick=True) for key, turns in records.turns.items()}
    found = set[str | None]()

    def pairs() -> Iterator[tuple[Sequence[Turn], str]]:
        for index in range(len(trained)):
            with suppress(SampleError):
                turns = trained.turns(index)
                before = question(turns)
                yield before, turns[len(before)].text.strip()

    def match(pair: tuple[Sequence[Turn], str]) -> str | None:
        return record_key(*pair) if record_key(*pair, quick=True) in likely else None

    known = pairs()
    with ThreadPoolExecutor(READERS) as pool:  # of a store, each media file takes requests
        while block := list(islice(known, BLOCK)):
            found.update(pool.map(match, block))
    return sum(record_key(turns, truths[key]) in found for key, turns in records.turns.items())


def count_outcomes(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the entries `num_records`, `status`, `reasons` and `coverage` of metrics.json.

    `status` and `reasons` (of failures) are counts of records by name; `coverage` is the answered fraction (0 to 1).
    """
    statuses = Counter(row.status for row in rows)
    reasons = Counter(row.reason.partition(":")[0] for row in rows if not row.answered)
    return {
        "num_records": len(rows),
        "status": dict(sorted(statuses.items())),
        "reasons": dict(sorted(reasons.items())),
        "coverage": sum(row.answered for row in rows) / len(rows),
    }


def write_outcome(out: Path, rows: Sequence[Row], facts: Mapping[str, Any], settings: Any) -> Result:
    """Writes all result files of an evaluation into `out`, and returns the result of `worldsmith evaluate`.

    The exit code is 1 if the fraction of records without an answer is greater than `settings.max_failed`.

    Args:
        out: Output folder.
        rows: Graded rows, for results.json.
        facts: Content of metrics.json.
        settings: Settings of the command (its config).

    Raises:
        UserError: If no record has an answer; results.json is written nevertheless.
    """
    write_results(out, rows)
    if not any(row.answered for row in rows):
        raise UserError(f"no record has an answer: {facts['reasons']}. {out / RESULTS} has the reason of each record")
    write_text(out / METRICS, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
    lines = [f"answers       {out / RESULTS}", f"metrics       {out / METRICS}"]
    if settings.confusion_picture and "confusion" in facts:
        from worldsmith.evaluation.answers.confusion_image import draw_confusion

        draw_confusion(out / CONFUSION, facts["confusion"])
        lines.append(f"confusion     {out / CONFUSION}")
    if facts["task"] == "its_directionality":
        write_text(out / DIRECTIONALITY, json.dumps(directionality(facts), indent=2) + "\n")
        if settings.item_files:
            write_items(out / ITEMS, rows, str(facts["dataset"]))
    refresh_page(out)
    failed = 1 - facts["coverage"]
    lines += format_outcome(facts)
    if failed > settings.max_failed:
        lines.insert(0, f"FAILED        {failed:.1%} of the records, more than max_failed ({settings.max_failed:.1%})")
    return Result(lines, facts, code=int(failed > settings.max_failed))


def format_outcome(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the metrics of an evaluation (the content of metrics.json) as lines; the last one has the main metric."""
    counts = ", ".join(f"{name} {count}" for name, count in facts["status"].items())
    yield f"records       {facts['num_records']}: {counts}"
    if facts["reasons"]:
        yield f"failed        {', '.join(f'{reason} {count}' for reason, count in facts['reasons'].items())}"
    for name in BESIDE:
        if name in facts:
            yield f"{name.replace('_', ' ')} {with_interval(facts, name)}"
    for kind, found in facts.get("per_task", {}).items():
        yield f"{kind}: {found['total']} records, accuracy {with_interval(found, 'accuracy')}"
    for kind, reason in facts.get("excluded_tasks", {}).items():
        yield f"{kind} is not part of the accuracy: {reason}"
    for name, parts in facts["slices"].items():
        yield from (f"{name} | {part}: {found['total']}, accuracy {with_interval(found, 'accuracy')}"
                    for part, found in parts.items())  # fmt: skip
    if other := facts.get("against"):
        yield (
            f"compared with {other['results']}: {other['other_accuracy']:.2f} on {other['shared']} shared "
            f"questions; {other['gained']} correct only in this result, {other['lost']} correct only in the other, p = "
            f"{other['p_value']:.2g}"
        )
    last = f"{NAMES.get(facts['task'], 'accuracy')} {with_interval(facts, 'accuracy')}"
    if "within_one" in facts:
        pearson, bounds = facts["pearson_correlation"], facts["pearson_interval"]
        last += (
            f" · within one {with_interval(facts, 'within_one')} · Pearson {format_score(pearson)}{interval(bounds)}"
        )
    yield last


def format_score(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def interval(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f" [{bounds[0]:.2f}, {bounds[1]:.2f}]"


def with_interval(facts: Mapping[str, Any], name: str) -> str:
    return f"{format_score(facts[name])}{interval(facts.get(f'{name}_interval'))}"


def directionality(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of directionality_score.json: accuracy, counts and confusion matrix of the directions.

    `facts` is the content of metrics.json.
    """
    return {
        "accuracy": facts["accuracy"],
        "correct": facts["correct"],
        "total": facts["total"],
        "unknown": facts["unparsed"],
        "confusion": facts["confusion"],
    }


def write_items(folder: Path, rows: Sequence[Row], dataset: str) -> None:
    """Writes one JSON file per answered record (answer, ground truth, correctness) into `folder`, named by record id.

    Deletes all other JSON files in `folder`. `dataset` is the name of the dataset, which is stored in each file.
    """
    folder.mkdir(exist_ok=True)
    names = {row.id: f"{file_name(row.id)}.json" for row in rows if row.answered}
    for old in set(folder.glob("*.json")) - {folder / name for name in names.values()}:
        old.unlink()
    for row in rows:
        if not row.answered:
            continue
        content = {
            "datasource": dataset,
            "video_id": row.video_id,
            "correct_answer": row.gt,
            "answer": row.response,
            "reasoning": split_answer(row.full_response)[0],
            "full_response": row.full_response,
            "is_correct": bool(row.correct),
        }
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        (folder / names[row.id]).write_text(text, encoding="utf-8")


def file_name(key: str) -> str:
    """Returns a file name without suffix for a record id; different ids have different file names."""
    plain = re.sub(r"[^\w.-]+", "_", key)[:80]
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
