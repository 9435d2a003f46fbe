"""Task types: how answers are parsed, when a prediction is correct, and which metrics are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.evaluation.answers.accuracy import measure_classes, measure_numbers, measure_ratings
from worldsmith.evaluation.answers.answer_text import normalize, parse_number, split_answer
from worldsmith.evaluation.answers.bert_score import BertScore
from worldsmith.evaluation.answers.parse_answers import (
    DIRECTIONS,
    LETTERS,
    RATINGS,
    YES_NO,
    parse_direction,
    parse_letter,
    parse_rating,
    parse_side,
    parse_yes_no,
    plain_yes_no,
)
from worldsmith.evaluation.answers.text_metrics import Metric, is_exact, measure_texts

Figures = dict[str, Any]
FREE = "free text has no single right answer"
UNREAD = "the format of its times is not defined"
EXCLUDED = {
    **dict.fromkeys(("open_qa", "scene_description", "video_summarization", "temporal_description"), FREE),
    "causal_linkage": FREE,
    "temporal_localization": UNREAD,
}
"""Task type for which no accuracy is computed -> the reason. Types that end with `OPEN` have no accuracy either."""
OPEN = "_openended"
SPATIAL = ("count", "distance", "left_right", "mcq")
"""Task types of metropolis_sgd records; each type has the same weight in the accuracy over all types."""
DISTANCE = 0.1
"""Max relative error of a correct distance."""


@dataclass(frozen=True, slots=True)
class AnswerTask:
    """Rules for the answers of one task type: parsing, correctness and metrics."""

    name: str
    read: Callable[[str], Any]
    """Parses an answer; None if it cannot be parsed."""
    expected: str
    """Description of valid ground-truth answers, for messages."""
    measure: Callable[[Sequence[str], Sequence[str]], Figures]
    """Computes the metrics from (answers, ground truths): value by metric name."""
    agree: Callable[[Any, Any], bool] = lambda predicted, true: bool(predicted == true)
    """Returns whether a parsed answer is correct for a parsed ground truth."""
    excluded: str = ""
    """Reason why the answers are not graded; "" if they are graded."""
    truths_may_lack: bool = False
    """Whether a record whose ground truth cannot be parsed is skipped; otherwise it is an error."""

    def right(self, answer: str, truth: str) -> bool | None:
        """Returns whether an answer is correct; None if the task is not graded or the ground truth cannot be parsed."""
        predicted, true = self.read(answer), self.read(strip_reasoning(truth))
        return None if self.excluded or true is None else predicted is not None and self.agree(predicted, true)


def strip_reasoning(truth: str) -> str:
    """Returns a ground-truth answer without the reasoning and without `<think>` and `<answer>` tags."""
    return split_answer(truth)[1]


def task_of_classes(
    name: str, read: Callable[[str], str | None], labels: Sequence[str], expected: str, **more: Any
) -> AnswerTask:
    def measure(answers: Sequence[str], truths: Sequence[str]) -> Figures:
        return measure_classes(
            list(map(read, answers)), [read(strip_reasoning(truth)) or "" for truth in truths], labels, **more
        )

    return AnswerTask(name, read, expected, measure)


def task_of_numbers(name: str, within: float) -> AnswerTask:
    def agree(predicted: float, true: float) -> bool:
        return abs(predicted - true) <= within * abs(true)

    def measure(answers: Sequence[str], truths: Sequence[str]) -> Figures:
        known = [parse_number(strip_reasoning(truth)) or 0.0 for truth in truths]
        return measure_numbers(list(map(parse_number, answers)), known, agree)

    return AnswerTask(name, parse_number, "a number", measure, agree)


class AnswerTasks:
    """Selects the task type of each record of an evaluation, and holds the settings of the free-text metrics.

    Args:
        metrics: Metrics of free-text answers to compute in addition to exact and soft matches, such as "bleu".
        soft_threshold: Min token F1 (0 to 1) at which a free-text answer counts as a soft match.
    """

    def __init__(self, *, metrics: Sequence[Metric], soft_threshold: float) -> None:
        self.bert_score: BertScore | None = None
        texts = partial(measure_texts, metrics=metrics, soft_threshold=soft_threshold)

        def measure(answers: Sequence[str], truths: Sequence[str]) -> Figures:
            predicted, true = [answer or None for answer in answers], list(map(strip_reasoning, truths))
            return texts(predicted, true, bert_score=self.bert_score)

        self.text = AnswerTask("text", lambda text: text or None, "a non-empty string", measure, is_exact)
        self.scores = AnswerTask("scores", parse_rating, "a score from 1 to 5", measure_ratings, truths_may_lack=True)
        self.binary = task_of_classes("binary", parse_yes_no, YES_NO, "yes or no", positive="yes")
        self.direction = task_of_classes(
            "its_directionality", parse_direction, DIRECTIONS, "one of " + ", ".join(DIRECTIONS)
        )

    def choose(self, name: str, truths: Mapping[str, str], kinds: Mapping[str, str]) -> dict[str, AnswerTask]:
        """Selects the task of each record.

        Args:
            name: Task type of all records; "auto": detected from the ground truth; "by_record" and "metropolis_sgd"
                (spatial questions): the task type that each record states.
            truths: Ground-truth answers by record id.
            kinds: Task types that the records state, by record id.

        Returns:
            The task of each record, by record id.

        Raises:
            UserError: If a task type is unknown, or a ground-truth answer cannot be parsed.
        """
        if name in ("by_record", "metropolis_sgd"):
            members: dict[str, dict[str, str]] = {}
            for key, truth in truths.items():
                members.setdefault(kinds.get(key, ""), {})[key] = truth
            task_of = self.task_of_spatial if name == "metropolis_sgd" else self.task_of_record
            found = {kind: task_of(kind, own) for kind, own in members.items()}
            chosen = {key: found[kinds.get(key, "")] for key in truths}
        else:
            task = self.named(name, list(truths.values()))
            chosen = dict.fromkeys(truths, task)
        for key, truth in truths.items():
            task = chosen[key]
            if not task.truths_may_lack and not task.excluded and task.read(strip_reasoning(truth)) is None:
                raise UserError(
                    f"{key}: the ground truth {truth!r:.60} is not {task.expected}, which the task {task.name} "
                    "requires. Fix the annotation, or choose another --task (in a spec: task.type)"
                )
        return chosen

    def use(self, bert_score: BertScore, chosen: Iterable[AnswerTask]) -> str:
        """Adds BERTScore to the metrics of free-text answers, if one of the tasks has free-text answers.

        Args:
            bert_score: The metric.
            chosen: Tasks of the records.

        Returns:
            A warning, without adding the metric, if the default encoder is not on this machine; "" otherwise.

        Raises:
            UserError: If an encoder other than the default one cannot be used.
        """
        if all(task.measure is not self.text.measure for task in chosen):
            return ""
        if bert_score.find_folder() is None:
            name = bert_score.config.model
            return f"{name} is not on this machine. Run `hf download {name}`, or set bertscore.model to its folder"
        self.bert_score = bert_score
        return ""

    def named(self, name: str, truths: Sequence[str]) -> AnswerTask:
        if name == "auto":
            name = detect(truths)
        if name == "binary" and all(parse_letter(strip_reasoning(truth)) in ("A", "B") for truth in truths):
            return task_of_classes("binary", partial(parse_letter, letters="AB"), "AB", "a or b", positive="A")
        if name == "mcq":
            return mcq(truths)
        return {
            "binary": self.binary, "text": self.text, "scores": self.scores, "its_directionality": self.direction,
        }[name]  # fmt: skip

    def task_of_spatial(self, kind: str, truths: Mapping[str, str]) -> AnswerTask:
        """Returns the task of metropolis_sgd records of the type `kind`: "count", "distance", "left_right" or "mcq".

        Raises UserError for another type. `truths` are the ground-truth answers by record id; they determine the
        letters of multiple-choice answers.
        """
        if kind not in SPATIAL:
            raise UserError(
                f"{next(iter(truths))}: unknown task type {kind!r}; metropolis_sgd supports {', '.join(SPATIAL)}. "
                "Use --task-field to select the record field that has the task type"
            )
        if kind == "mcq":
            return mcq(list(truths.values()))
        if kind == "left_right":
            return task_of_classes(kind, parse_side, ("left", "right"), "left or right")
        return task_of_numbers(kind, 0.0 if kind == "count" else DISTANCE)

    def task_of_record(self, kind: str, truths: Mapping[str, str]) -> AnswerTask:
        """Returns the task of records that state the task type `kind`, such as "bcq", "mcq" or "causal_linkage".

        Raises UserError if the type is unknown. `truths` are the ground-truth answers by record id; they determine the
        letters of multiple-choice answers.
        """
        if kind in ("bcq", "binary", "mcq"):
            return self.named(kind.replace("bcq", "binary"), list(truths.values()))
        excluded = FREE if kind.endswith(OPEN) else EXCLUDED.get(kind)
        if excluded is None:
            known = ", ".join(("bcq", "mcq", f"…{OPEN}", *EXCLUDED))
            raise UserError(
                f"{next(iter(truths))}: unknown task type {kind!r}; known: {known}. Use --task-field to select the "
                "record field that has the task type"
            )
        return AnswerTask(
            kind, self.text.read, "a non-empty string", self.text.measure, self.text.agree, excluded=excluded
        )


def mcq(truths: Sequence[str]) -> AnswerTask:
    """Builds the multiple-choice task with the option letters A to D, or up to the last letter in `truths` (max J).

    `truths` are the ground-truth answers.
    """
    found = {letter for truth in truths if (letter := parse_letter(strip_reasoning(truth), "ABCDEFGHIJ"))}
    letters = "ABCDEFGHIJ"[: max(len(LETTERS), *(ord(letter) - ord("A") + 1 for letter in found), 0)]
    return task_of_classes("mcq", partial(parse_letter, letters=letters), letters, "the letter of an option")


def detect(truths: Sequence[str]) -> str:
    """Returns the task type that all ground-truth answers fit: "binary", "mcq" or "scores"; else "text".

    Letters are options of a multiple-choice task ("mcq"), even if only A and B occur.
    """
    words = [strip_reasoning(truth) for truth in truths]
    if all(map(plain_yes_no, words)):
        return "binary"
    if all(parse_letter(word) and len(normalize(word, articles=True)) == 1 for word in words):
        return "mcq"
    if all(normalize(word) in map(str, RATINGS) for word in words):
        return "scores"
    return "text"
