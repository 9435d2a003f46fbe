"""Grades answers and computes metrics: of all answers, by task type, by data slice, and compared with another model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.evaluation.answers.answer_tasks import SPATIAL, AnswerTask
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.evaluation.answers.results import Row
from worldsmith.evaluation.intervals import accuracy_of

MOST = 30
"""Max number of values of a metadata key that get metrics of their own; the rarest values are combined."""
OTHERS = "(others)"


def grade_row(row: Row, task: AnswerTask, response_text: str) -> None:
    """Grades a generated text and stores response, task, status, reason and correctness in `row`.

    Args:
        row: Result of the record, which is changed in place.
        task: Task of the record, which parses and grades the answer.
        response_text: Full generated text, with reasoning.
    """
    row.full_response = response_text
    row.response = split_answer(response_text)[1]
    row.task = task.name
    row.status = "ok"
    row.reason = ""
    if task.read(row.response) is None:
        row.status = "unparsed"
        row.reason = f"expected {task.expected}" if row.response else "there is no answer"
    row.correct = task.right(row.response, row.gt)


def measure(rows: Sequence[Row], tasks: Mapping[str, AnswerTask], name: str) -> dict[str, Any]:
    """Computes the metrics of the answered rows.

    Args:
        rows: Graded rows; those without an answer are skipped.
        tasks: Task of each record by id.
        name: Task type of the evaluation, as in `AnswerTasks.choose`; "by_record" and "metropolis_sgd" add metrics per
            task.

    Returns:
        Values by metric name, such as "accuracy", as in metrics.json.
    """
    answered = [row for row in rows if row.answered]
    kinds = Counter(row.task for row in answered)
    if name not in ("by_record", "metropolis_sgd"):
        task = tasks[answered[0].id] if answered else next(iter(tasks.values()))
        return {"task": task.name, **measure_task(answered, task)}
    per_task, excluded = {}, {}
    for kind in sorted(kinds):
        own = [row for row in answered if row.task == kind]
        task = tasks[own[0].id]
        per_task[kind] = measure_task(own, task)
        if task.excluded:
            excluded[kind] = task.excluded
    counted = [found for kind, found in per_task.items() if kind not in excluded]
    total, right = sum(found["total"] for found in counted), sum(found["correct"] for found in counted)
    figures = {
        "task": name,
        **accuracy_of(right, total),
        "unparsed": sum(row.status == "unparsed" for row in answered),
        "per_task": per_task,
        "excluded_tasks": excluded,
    }
    if name == "metropolis_sgd":
        shares = [per_task[kind]["accuracy"] for kind in SPATIAL if kind in per_task]
        figures["final_weighted_score"] = sum(shares) / len(SPATIAL) if len(shares) == len(SPATIAL) else None
        figures["error_rates"] = {kind: 1 - found["accuracy"] for kind, found in per_task.items()}
    return figures


def measure_task(rows: Sequence[Row], task: AnswerTask) -> dict[str, Any]:
    figures = task.measure([row.response for row in rows], [row.gt for row in rows])
    if task.excluded:
        figures |= dict.fromkeys(("accuracy", "accuracy_interval", "correct"))
    return figures


def measure_slices(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Computes the accuracy in each slice of the data.

    Args:
        rows: Rows; those that are not graded are skipped.

    Returns:
        Slice name, such as "duration" -> slice value, such as "5 to 10 s" -> number of records, of correct ones, and
        accuracy with its interval. If a slice has more than 30 values, those with the fewest records are combined.
    """
    judged = [row for row in rows if row.correct is not None]
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for row in judged for name in row.slice):
        counts = Counter(row.slice.get(name, "") for row in judged)
        ordered = sorted(counts, key=lambda value: (-counts[value], value))
        kept = set(ordered if len(ordered) <= MOST else ordered[: MOST - 1])
        values = [row.slice.get(name, "") for row in judged]
        parts = [value if value in kept else OTHERS for value in values]
        found[name] = {}
        for part in dict.fromkeys([*(value for value in ordered if value in kept), *parts]):
            own = [row for row, other in zip(judged, parts) if other == part]
            found[name][part] = accuracy_of(sum(bool(row.correct) for row in own), len(own))
    return found


def compare_accuracy(
    rows: Sequence[Row], others: Sequence[Mapping[str, Any]], right: Callable[[Row, str], bool]
) -> dict[str, Any]:
    """Compares the accuracy of two models with McNemar's exact test over the records that both have answered.

    Args:
        rows: Graded rows of the model.
        others: Rows of the other model's results.json.
        right: Called with (row, response of the other model); returns whether that response is correct.

    Returns:
        `shared` records, `accuracy` and `other_accuracy` on them, `gained` and `lost` (records that only this or only
        the other model answers correctly) and `p_value`.

    Raises:
        UserError: If the models have no record in common, or a ground truth differs.

    Source:
        McNemar 1947.
    """
    own = {row.id: row for row in rows if row.correct is not None}
    theirs = {row["id"]: row for row in others if row["status"] in ("ok", "unparsed")}
    shared = [key for key in own if key in theirs]
    if not shared:
        raise UserError(
            "the results of the other model have no record in common with these. Compare results of the same dataset"
        )
    for key in shared:
        if own[key].gt.strip() != theirs[key]["gt"].strip():
            raise UserError(
                f"{key}: the ground truth is {own[key].gt!r:.60} here and {theirs[key]['gt']!r:.60} in the other "
                "model's results. Compare results of the same dataset"
            )
    counts = Counter((bool(own[key].correct), right(own[key], theirs[key]["response"])) for key in shared)
    gained, lost, total = counts[True, False], counts[False, True], len(shared)
    return {
        "shared": total,
        "accuracy": (counts[True, True] + gained) / total,
        "other_accuracy": (counts[True, True] + lost) / total,
        "gained": gained,
        "lost": lost,
        "p_value": mcnemar(gained, lost),
    }


def mcnemar(gained: int, lost: int) -> float:
    """Computes the two-sided exact p-value of McNemar's test.

    Args:
        gained: Number of records that only this model answers correctly.
        lost: Number of records that only the other model answers correctly.
    """
    differing = gained + lost
    tail = sum(math.comb(differing, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**differing)
