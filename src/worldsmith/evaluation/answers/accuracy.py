"""Metrics of answers that are labels, numbers, or ratings as in the VideoPhy-2 protocol."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from worldsmith.evaluation.answers.parse_answers import RATINGS, parse_rating
from worldsmith.evaluation.intervals import DRAWS, correlation_interval, mean_interval, measure_share

if TYPE_CHECKING:
    import numpy as np


def measure_classes(
    said: Sequence[str | None], true: Sequence[str], labels: Sequence[str], *, positive: str | None = None
) -> dict[str, Any]:
    """Computes accuracy and related metrics of predicted labels.

    `precision`, `recall` and `f1` are those of the label `positive`, 0 if their denominator is 0. Balanced accuracy is
    the mean recall of the labels that occur; with two labels it is None unless both occur. Intervals are 95 %
    confidence intervals: Wilson's for `accuracy`, a bootstrap over the answers for the others.

    Args:
        said: Predicted labels; None for an answer that could not be parsed, which counts as wrong.
        true: Ground-truth labels.
        labels: All labels, in the order of the confusion matrix.
        positive: Label of a binary task for which precision, recall and F1 are computed; None: they are omitted.

    Returns:
        Values by metric name, with intervals as `NAME_interval` and the confusion matrix as `confusion`.
    """
    counts, occurring = Counter(zip(true, said)), [label for label in labels if label in set(true)]
    columns = [*labels, None]
    rows = [[counts[label, answer] for answer in columns] for label in labels]
    total, right = len(true), sum(counts[label, label] for label in labels)
    figures: dict[str, Any] = {
        "total": total,
        "correct": right,
        **measure_share("accuracy", right, total),
        "unparsed": sum(answer is None for answer in said),
        "majority_baseline": max(Counter(true).values()) / total if total else None,
    }
    derived: dict[str, Callable[[Any], Any]] = {}
    if len(labels) > 2 or len(occurring) == len(labels):
        places = [labels.index(label) for label in occurring]
        derived["balanced_accuracy"] = partial(balanced_accuracy, places)
    else:
        figures |= {"balanced_accuracy": None, "balanced_accuracy_interval": None}
    if positive is not None:
        place = labels.index(positive)
        derived |= {name: partial(measure_label, name, place) for name in ("precision", "recall", "f1")}
        negative = next(label for label in labels if label != positive)
        figures |= {
            "true_positives": counts[positive, positive],
            "false_positives": counts[negative, positive],
            "true_negatives": counts[negative, negative],
            "false_negatives": counts[positive, negative],
        }
    if total:
        figures |= with_intervals(rows, derived)
    return {**figures, "confusion": {"labels": list(labels), "rows": rows}}


def with_intervals(rows: list[list[int]], derived: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Computes metrics of a confusion matrix with 95 % intervals by the percentile bootstrap with a fixed seed.

    Sampling answers with replacement equals sampling the cells of the matrix from a multinomial distribution.

    Args:
        rows: Confusion matrix: counts by true label (row) and predicted label (column).
        derived: Metric name -> function of confusion matrices [..., true, predicted] that returns the metric [...].

    Returns:
        Value of each metric by name, and its (low, high) as `NAME_interval`.
    """
    import numpy as np

    table = np.array(rows, dtype=float)
    total = int(table.sum())
    drawn = np.random.default_rng(0).multinomial(total, table.ravel() / total, DRAWS).reshape(DRAWS, *table.shape)
    figures: dict[str, Any] = {}
    for name, figure in derived.items():
        low, high = np.percentile(figure(drawn.astype(float)), (2.5, 97.5))
        figures |= {name: float(figure(table)), f"{name}_interval": (float(low), float(high))}
    return figures


def measure_label(name: str, place: int, tables: np.ndarray) -> np.ndarray:
    """Computes the metric `name` ("precision", "recall" or "f1") of the label at index `place`.

    `tables` are confusion matrices [..., true, predicted].
    """
    hits, said, true = tables[..., place, place], tables[..., place].sum(-1), tables[..., place, :].sum(-1)
    part, whole = {"precision": (hits, said), "recall": (hits, true), "f1": (2 * hits, said + true)}[name]
    return ratio(part, whole)


def balanced_accuracy(places: Sequence[int], tables: np.ndarray) -> np.ndarray:
    """Computes the mean recall of the labels at the indices `places`; `tables`: matrices [..., true, predicted]."""
    import numpy as np

    return np.mean([measure_label("recall", place, tables) for place in places], axis=0)


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns `part` / `whole` elementwise; 0 where `whole` is 0."""
    import numpy as np

    return np.divide(part, whole, out=np.zeros_like(part, dtype=float), where=whole != 0)


def measure_numbers(
    said: Sequence[float | None], true: Sequence[float], agree: Callable[[float, float], bool]
) -> dict[str, Any]:
    """Computes accuracy and relative error of predicted numbers.

    `relative_error` is the mean of |prediction - truth| / |truth| over the answers that have a number and whose ground
    truth is not 0.

    Args:
        said: Predicted numbers; None for an answer that could not be parsed, which counts as wrong and is skipped in
            the relative error.
        true: Ground-truth numbers.
        agree: Called with (prediction, ground truth); returns whether the prediction is correct.

    Returns:
        Values by metric name, with 95 % intervals as `NAME_interval`.
    """
    total = len(true)
    right = sum(answer is not None and agree(answer, truth) for answer, truth in zip(said, true))
    errors = [abs(a - t) / abs(t) for a, t in zip(said, true) if a is not None and t]
    return {
        "total": total,
        "correct": right,
        **measure_share("accuracy", right, total),
        "unparsed": sum(answer is None for answer in said),
        "relative_error": math.fsum(errors) / len(errors) if errors else None,
        "relative_error_interval": mean_interval(sorted(errors)),
    }


def measure_ratings(answers: Sequence[str], truths: Sequence[str]) -> dict[str, Any]:
    """Computes metrics of answers that contain a rating from 1 to 5.

    `accuracy` and `pearson_correlation` are those of the VideoPhy-2 protocol.

    Args:
        answers: Answer texts. An answer without a rating is wrong, and skipped in correlations and the mean error.
        truths: Ground-truth texts. A sample without a rating in the ground truth is skipped.

    Returns:
        Values by metric name, None if undefined, with the confusion matrix as `confusion`.
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
        **measure_share("accuracy", exact, total),
        **measure_share("within_one", near, total),
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
    """Computes Pearson's correlation of the two columns of an array [n, 2]; None if n < 2 or a column is constant."""
    import numpy as np

    if len(pairs) < 2 or not pairs.std(axis=0).all():
        return None
    return float(np.corrcoef(pairs.T)[0, 1])


def ranks(values: Any) -> Any:
    """Returns the rank of each value of a one-dimensional array, from 1; equal values get their mean rank."""
    import numpy as np

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[places]
