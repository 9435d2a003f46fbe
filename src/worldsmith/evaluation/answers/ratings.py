"""Ratings from 1 to 5: parsed and measured as in the VideoPhy-2 protocol, with metrics that it does not have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from worldsmith.evaluation.intervals import correlation_interval, share_interval

RATINGS = (1, 2, 3, 4, 5)
ALONE = re.compile(r"\b([1-5])\b")


def parse_rating(text: str) -> int | None:
    """Returns the first digit from 1 to 5 that stands alone: "2.5" is 2, "4/5" is 4, "10" is None."""
    found = ALONE.search(text)
    return int(found[1]) if found else None


def measure_ratings(answers: Sequence[str], truths: Sequence[str]) -> dict[str, Any]:
    """Returns the metrics of answers against the ground truth, which is text as well.

    A sample without a true rating does not count; an answer without a rating is wrong, and is not in correlations and
    the mean error. `accuracy` and `pearson_correlation` are those of the protocol; undefined metrics are None.
    """
    import numpy as np

    known = [(parse_rating(answer), true) for answer, truth in zip(answers, truths) if (true := parse_rating(truth))]
    pairs = np.array(sorted(pair for pair in known if pair[0] is not None), dtype=float).reshape(-1, 2)
    errors = np.abs(pairs[:, 0] - pairs[:, 1])
    counts = Counter(true for _, true in known)
    exact, near, total = int((errors == 0).sum()), int((errors <= 1).sum()), len(known)
    pearson = correlation(pairs)
    return {
        "total": total,
        "correct": exact,
        "truths_unread": len(answers) - total,
        "unparsed": total - len(pairs),
        "accuracy": exact / total if total else None,
        "accuracy_interval": share_interval(exact, total),
        "within_one": near / total if total else None,
        "within_one_interval": share_interval(near, total),
        "majority_baseline": max(counts.values()) / total if total else None,
        "mean_absolute_error": float(errors.mean()) if len(pairs) else None,
        "pearson_correlation": pearson,
        "pearson_interval": correlation_interval(pearson, len(pairs)),
        "spearman_correlation": correlation(np.stack([ranks(column) for column in pairs.T], axis=1)),
        "confusion": {
            "labels": [str(rating) for rating in RATINGS],
            "rows": [[sum(pair == (said, true) for pair in known) for said in (*RATINGS, None)] for true in RATINGS],
        },
    }


def correlation(pairs: Any) -> float | None:
    """Returns Pearson's correlation of [n, 2]; None for fewer than two pairs, and if a column is constant."""
    import numpy as np

    if len(pairs) < 2 or not pairs.std(axis=0).all():
        return None
    return float(np.corrcoef(pairs.T)[0, 1])


def ranks(values: Any) -> Any:
    """Returns ranks from 1; equal values get their mean rank."""
    import numpy as np

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[places]
