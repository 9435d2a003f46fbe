"""What an evaluation of answers writes: each answer as it comes, so that one that was stopped goes on, and results."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from worldsmith.actions.action import Result
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import flatten
from worldsmith.evaluation.answers.reading import split_answer
from worldsmith.evaluation.answers.results import METRICS, RESULTS, Row, write_results
from worldsmith.files.atomic import write_text
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import append_line
from worldsmith.monitor.page.run_page import refresh_page
from worldsmith.sampling.answers import Answer

FOLDER, SETTINGS = "answers", "settings.json"
CONFUSION, ITEMS, DIRECTIONALITY = "confusion.png", "items", "directionality_score.json"
NAMES = {"binary": "yes/no accuracy", "text": "exact match"}
"""What the accuracy is called in the last line."""
BESIDE = (
    "balanced_accuracy", "precision", "recall", "f1", "soft_accuracy", "token_f1", "bleu", "rouge1", "rouge2", "rougeL",
    "rougeLsum", "bertscore_f1", "mean_absolute_error", "spearman_correlation", "majority_baseline",
    "final_weighted_score",
)  # fmt: skip


class Settings(Protocol):
    """What of the action's settings counts here."""

    max_failed: float
    confusion_picture: bool
    item_files: bool


class SavedAnswers:
    """A folder of lines, a file for each process that answers; and the settings with which all of them were made."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raises UserError when there are answers that were made with other settings."""
        if not (self.folder / SETTINGS).is_file():
            return
        known, wanted = flatten(read_json_object(self.folder / SETTINGS)), flatten(json.loads(json.dumps(settings)))
        differing = [
            f"{name} was {known.get(name)!r} and is {wanted.get(name)!r}"
            for name in sorted({*known, *wanted})
            if known.get(name) != wanted.get(name)
        ]
        if differing:
            raise UserError(
                f"{self.folder.parent} has answers that were made with other settings: {'; '.join(differing)}. Choose "
                "another folder, or give --force to ask all anew"
            )

    def begin(self, settings: Mapping[str, Any], *, anew: bool) -> None:
        """With `anew` the answers that are there are removed. Raises like `require_same`."""
        if anew and self.folder.exists():
            shutil.rmtree(self.folder)
        self.require_same(settings)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / SETTINGS, json.dumps(settings, indent=2) + "\n")

    def add(self, answer: Answer, mark: str, *, number: int, count: int) -> None:
        """`mark` is that of the question; `number` of `count` is the process."""
        line = {"id": answer.key, "asked": mark, "said": answer.text}
        if answer.error:
            line |= {"error": answer.error, "status": "gen_error" if answer.was_asked else "prep_error"}
        append_line(self.folder / f"{number}_of_{count}.jsonl", json.dumps(line, ensure_ascii=False))

    def read(self) -> dict[tuple[str, str], dict[str, str]]:
        """The lines by id and mark of the question. A later one counts, but no failure replaces an answer; a line that
        was cut off is none."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for file in sorted(self.folder.glob("*_of_*.jsonl")):
            for text in file.read_bytes().split(b"\n"):
                try:
                    line = json.loads(text)
                    key = (line["id"], line["asked"])
                except (ValueError, LookupError, TypeError):
                    continue
                if "error" not in line or "error" in found.get(key, line):
                    found[key] = line
        return found


def count_outcomes(rows: Sequence[Row]) -> dict[str, Any]:
    """How many records came to what."""
    statuses = Counter(row.status for row in rows)
    reasons = Counter(row.reason.partition(":")[0] for row in rows if not row.answered)
    return {
        "num_records": len(rows),
        "status": dict(sorted(statuses.items())),
        "reasons": dict(sorted(reasons.items())),
        "coverage": sum(row.answered for row in rows) / len(rows),
    }


def write_outcome(out: Path, rows: Sequence[Row], facts: Mapping[str, Any], settings: Settings) -> Result:
    """Raises UserError, after the rows are written, when there is no answer at all."""
    write_results(out, rows)
    if not any(row.answered for row in rows):
        raise UserError(f"no record has an answer: {facts['reasons']}; {out / RESULTS} says why for each")
    write_text(out / METRICS, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
    lines = [f"answers       {out / RESULTS}", f"figures       {out / METRICS}"]
    if settings.confusion_picture and "confusion" in facts:
        from worldsmith.evaluation.answers.picture import draw_confusion

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
    """The figures for people; the last line has the one that counts."""
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
        yield f"{kind} is not in the accuracy: {reason}"
    for name, parts in facts["slices"].items():
        yield from (f"{name} | {part}: {found['total']}, accuracy {with_interval(found, 'accuracy')}"
                    for part, found in parts.items())  # fmt: skip
    if other := facts.get("against"):
        yield (
            f"against {other['results']}: {other['other_accuracy']:.2f} of {other['shared']}; {other['gained']} are "
            f"right here alone, {other['lost']} there alone, p = {other['p_value']:.2g}"
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
    return {
        "accuracy": facts["accuracy"],
        "correct": facts["correct"],
        "total": facts["total"],
        "unknown": facts["unparsed"],
        "confusion": facts["confusion"],
    }


def write_items(folder: Path, rows: Sequence[Row], dataset: str) -> None:
    """A file for each answered record, named by its id: several questions about one video have one each."""
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
    """A key as a file name, each its own."""
    plain = re.sub(r"[^\w.-]+", "_", key)[:80]
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
