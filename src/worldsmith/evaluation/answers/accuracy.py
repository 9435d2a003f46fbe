"""Metrics of answers that are labels, numbers, or ratings as in the VideoPhy-2 protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from worldsmith.evaluation.answers.parse_answers import RATINGS, parse_rating
from worldsmith.evaluation.intervals import (
    DRAWS,
    accuracy_of,
    correlation_interval,
    fraction_with_interval,
    mean_with_interval,
)

if TYPE_CHECKING:
    import numpy as np


def measure_classes(
    predictions: Sequence[str | None], truths: Sequence[str], labels: Sequence[str], *, positive: str | None = None
) -> dict[str, Any]:
    """Computes accuracy and related metrics of predicted labels.

    `precision`, `recall` and `f1` are those of the label `positive`, 0 if their denominator is 0. Balanced accuracy is
    the mean recall of the labels that occur; with two labels it is None unless both occur. Intervals are 95 %
    confidence intervals: Wilson's for `accuracy`, a bootstrap over the answers for the others.

    Args:
        predictions: Predicted labels; None for an answer that could not be parsed, which counts as wrong.
        truths: Ground-truth labels.
        labels: All labels, in the order of the confusion matrix.
        positive: Label of a binary task for which precision, recall and F1 are computed; None: they are omitted.

    Returns:
        Values by metric name, with intervals as `NAME_interval` and the confusion matrix as `confusion`.
    """
    counts, occurring = Counter(zip(truths, predictions)), [label for label in labels if label in set(truths)]
    columns = [*labels, None]
    rows = [[counts[label, answer] for answer in columns] for label in labels]
    total, right = len(truths), sum(counts[label, label] for label in labels)
    metrics: dict[str, Any] = {
        **accuracy_of(right, total),
        "unparsed": sum(answer is None for answer in predictions),
        "majority_baseline": max(Counter(truths).values()) / total if total else None,
    }
    derived: dict[str, Callable[[Any], Any]] = {}
    if len(labels) > 2 or len(occurring) == len(labels):
        indices = [labels.index(label) for label in occurring]
        derived["balanced_accuracy"] = partial(balanced_accuracy, indices)
    else:
        metrics |= {"balanced_accuracy": None, "balanced_accuracy_interval": None}
    if positive is not None:
        positive_index = labels.index(positive)
        derived |= {name: partial(measure_label, name, positive_index) for name in ("precision", "recall", "f1")}
        negative = next(label for label in labels if label != positive)
        metrics |= {
            "true_positives": counts[positive, positive],
            "false_positives": counts[negative, positive],
            "true_negatives": counts[negative, negative],
            "false_negatives": counts[positive, negative],
        }
    if total:
        metrics |= with_intervals(rows, derived)
    return {**metrics, "confusion": {"labels": list(labels), "rows": rows}}


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
    resampled = np.random.default_rng(0).multinomial(total, table.ravel() / total, DRAWS).reshape(DRAWS, *table.shape)
    metrics: dict[str, Any] = {}
    for name, metric in derived.items():
        low, high = np.percentile(metric(resampled.astype(float)), (2.5, 97.5))
        metrics |= {name: float(metric(table)), f"{name}_interval": (float(low), float(high))}
    return metrics


def measure_label(name: str, index: int, tables: np.ndarray) -> np.ndarray:
    """Computes the metric `name` ("precision", "recall" or "f1") of the label with the given index.

    `tables` are confusion matrices [..., true, predicted].
    """
    hits, predicted, true = tables[..., index, index], tables[..., index].sum(-1), tables[..., index, :].sum(-1)
    numerator, denominator = {
        "precision": (hits, predicted),
        "recall": (hits, true),
        "f1": (2 * hits, predicted + true),
    }[name]
    return ratio(numerator, denominator)


def balanced_accuracy(indices: Sequence[int], tables: np.ndarray) -> np.ndarray:
    """Computes the mean recall of the labels with the given indices; `tables`: matrices [..., true, predicted]."""
    import numpy as np

    return np.mean([measure_label("recall", index, tables) for index in indices], axis=0)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Returns `numerator` / `denominator` elementwise; 0 where `denominator` is 0."""
    import numpy as np

    return np.divide(numerator, denominator, out=np.zeros_like(numerator, dtype=float), where=denominator != 0)


def measure_numbers(
    predictions: Sequence[float | None], truths: Sequence[float], is_correct: Callable[[float, float], bool]
) -> dict[str, Any]:
    """Computes accuracy and relative error of predicted numbers.

    `relative_error` is the mean of |prediction - truth| / |truth| over the answers that have a number and whose ground
    truth is not 0.

    Args:
        predictions: Predicted numbers; None for an answer that could not be parsed, which counts as wrong and is
            skipped in the relative error.
        truths: Ground-truth numbers.
        is_correct: Called with (prediction, ground truth); returns whether the prediction is correct.

    Returns:
        Values by metric name, with 95 % intervals as `NAME_interval`.
    """
    total = len(truths)
    right = sum(answer is not None and is_correct(answer, truth) for answer, truth in zip(predictions, truths))
    errors = [abs(a - t) / abs(t) for a, t in zip(predictions, truths) if a is not None and t]
    return {
        **accuracy_of(right, total),
        "unparsed": sum(answer is None for answer in predictions),
        **mean_with_interval("relative_error", errors),
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
        **fraction_with_interval("accuracy", exact, total),
        **fraction_with_interval("within_one", near, total),
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
