"""Answers to yes/no questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from worldsmith.evaluation.intervals import share_interval

WORDS = ("yes", "no")


def parse_word(text: str) -> str | None:
    """ "yes" or "no", when the text is nothing else but for case, blanks and a full stop."""
    word = text.strip().lower().removesuffix(".")
    return word if word in WORDS else None


def measure_yes_no(answers: Sequence[str], truths: Sequence[str]) -> dict[str, Any]:
    """The figures of answers against true ones; "yes" is the positive class. Figures that do not exist are None.

    A sample whose truth is neither does not count; such an answer is wrong.
    """
    known = [(parse_word(answer), true) for answer, truth in zip(answers, truths) if (true := parse_word(truth))]
    counts, truth = Counter(known), Counter(true for _, true in known)
    right, total, said_yes = counts["yes", "yes"] + counts["no", "no"], len(known), sum(s == "yes" for s, _ in known)
    precision = counts["yes", "yes"] / said_yes if said_yes else None
    recall = counts["yes", "yes"] / truth["yes"] if truth["yes"] else None
    both = precision is not None and recall is not None and precision + recall > 0
    return {
        "num_samples": len(answers),
        "num_gt_parse_failures": len(answers) - total,
        "num_pred_parse_failures": sum(said is None for said, _ in known),
        "accuracy": right / total if total else None,
        "accuracy_interval": share_interval(right, total),
        "majority_baseline": max(truth.values()) / total if total else None,
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if both and precision and recall else None,
        "confusion": [[counts[said, true] for said in (*WORDS, None)] for true in WORDS],
    }
