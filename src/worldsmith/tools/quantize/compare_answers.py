"""The same questions to two models: whose answers are right, and whether they are the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import share_done
from worldsmith.config.errors import UserError
from worldsmith.data.conversations.conversation import Turn, question
from worldsmith.evaluation.answers.answer_tasks import AnswerTasks
from worldsmith.evaluation.answers.compare import mcnemar
from worldsmith.evaluation.answers.reading import split_answer

if TYPE_CHECKING:
    from worldsmith.models.decoding import Decoding
    from worldsmith.sampling.answers import Answer, Answerer

Asked = Sequence[tuple[str, Sequence[Turn]]]
"""Conversations by key; the last answer of each is the true one."""


@dataclass(frozen=True, slots=True)
class Said:
    """The answers of one model."""

    answers: list[Answer]
    seconds: float
    """For all of them."""


def ask(
    answerer: Answerer, asked: Asked, *, batch_size: int, max_new_tokens: int, decoding: Decoding, what: str
) -> Said:
    """The first question is also asked once before the clock starts: some models make themselves ready then."""
    questions = [(key, question(turns)) for key, turns in asked]
    list(answerer.answers(questions[:1], batch_size=1, max_new_tokens=1))
    answers, show = [], share_done(what)
    start = time.perf_counter()
    for answer in answerer.answers(questions, batch_size=batch_size, max_new_tokens=max_new_tokens, decoding=decoding):
        answers.append(answer)
        show(len(answers), len(questions))
    return Said(answers, time.perf_counter() - start)


def compare(asked: Asked, before: Said, after: Said) -> dict[str, Any]:
    """The figures of both models, judged as `worldsmith evaluate` does. A conversation that one of them could not be
    asked is in none of them.

    Raises UserError when that is so of all.
    """
    pairs = {old.key: (old, new) for old, new in zip(before.answers, after.answers) if not old.error and not new.error}
    if not pairs:
        raise UserError(f"none of the {len(asked)} questions could be asked: {before.answers[0].error}")
    truths = {key: turns[len(question(turns))].text for key, turns in asked if key in pairs}
    tasks = AnswerTasks(metrics=[], soft_threshold=1).choose("auto", truths, {})
    said = [(key, *(split_answer(answer.text)[1] for answer in pair)) for key, pair in pairs.items()]
    right = [(tasks[key].right(old, truths[key]), tasks[key].right(new, truths[key])) for key, old, new in said]
    lost, gained = sum(bool(old and not new) for old, new in right), sum(bool(new and not old) for old, new in right)
    count = len(pairs)
    return {
        "task": next(iter(tasks.values())).name,
        "questions": count,
        "left_out": len(asked) - count,
        "accuracy_before": sum(bool(old) for old, _ in right) / count,
        "accuracy_after": sum(bool(new) for _, new in right) / count,
        "became_wrong": lost,
        "became_right": gained,
        "p_value": mcnemar(gained, lost),
        "same_answers": sum(old == new for _, old, new in said) / count,
        "seconds_per_answer_before": before.seconds / count,
        "seconds_per_answer_after": after.seconds / count,
    }
