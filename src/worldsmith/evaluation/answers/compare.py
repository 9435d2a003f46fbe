"""Two models' answers to the same questions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.evaluation.answers.results import Row


def compare_accuracy(
    rows: Sequence[Row], others: Sequence[Mapping[str, Any]], right: Callable[[Row, str], bool]
) -> dict[str, Any]:
    """McNemar's exact test over the records that both models have answered (McNemar 1947); `right(row, response)`
    judges what the other one said.

    Raises UserError when they have no record in common, or another true answer.
    """
    own = {row.id: row for row in rows if row.correct is not None}
    theirs = {row["id"]: row for row in others if row["status"] in ("ok", "unparsed")}
    shared = [key for key in own if key in theirs]
    if not shared:
        raise UserError("the other model's results have no record in common with these; compare those of one data set")
    for key in shared:
        if own[key].gt.strip() != theirs[key]["gt"].strip():
            raise UserError(
                f"{key}: the true answer is {own[key].gt!r:.60} here and {theirs[key]['gt']!r:.60} in the other "
                "model's results; compare those of one data set"
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
    """The two-sided exact p-value: how likely a division at least as uneven is when both are as good."""
    differing = gained + lost
    tail = sum(math.comb(differing, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**differing)
