"""Metrics of free-text answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.evaluation.answers.answer_text import normalize, token_f1
from worldsmith.evaluation.intervals import accuracy_of, fraction_with_interval, mean_with_interval
from worldsmith.files.errors import require_libraries

if TYPE_CHECKING:
    from worldsmith.evaluation.answers.bert_score import BertScore

Metric = Literal["bleu", "rouge", "bertscore"]
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def is_exact(answer: str, truth: str) -> bool:
    return normalize(answer) == normalize(truth)


def measure_texts(
    predictions: Sequence[str | None],
    truths: Sequence[str],
    *,
    metrics: Sequence[Metric],
    soft_threshold: float,
    bert_score: BertScore | None = None,
) -> dict[str, Any]:
    """Computes metrics of free-text answers.

    `accuracy` is the fraction of exact matches of normalized texts, `soft_accuracy` that of soft matches. BLEU is that
    of sacrebleu over all answers, 0 to 100. ROUGE is the mean F-measure of rouge-score, 0 to 1. BERTScore values are
    means.

    Args:
        predictions: Answers; None counts as wrong.
        truths: Ground-truth answers.
        metrics: Additional metrics to compute; "bertscore" in it has no effect without `bert_score`.
        soft_threshold: Min token F1 (0 to 1) of a soft match.
        bert_score: Computes BERTScore, also if it is not in `metrics`; None: BERTScore is skipped.

    Returns:
        Values by metric name, with 95 % intervals as `NAME_interval`.

    Raises:
        UserError: If sacrebleu or rouge-score is required but not installed.
    """
    answers, total = [answer or "" for answer in predictions], len(truths)
    exact = sum(is_exact(answer, truth) for answer, truth in zip(answers, truths))
    overlaps = [token_f1(answer, truth) for answer, truth in zip(answers, truths)]
    soft = sum(overlap >= soft_threshold for overlap in overlaps)
    values_by_name: dict[str, Any] = {
        **accuracy_of(exact, total),
        "unparsed": sum(answer is None for answer in predictions),
        "soft_correct": soft,
        **fraction_with_interval("soft_accuracy", soft, total),
        "soft_threshold": soft_threshold,
        **mean_with_interval("token_f1", overlaps),
    }
    if total and "bleu" in metrics:
        values_by_name |= bleu(answers, truths)
    if total and "rouge" in metrics:
        values_by_name |= rouge(answers, truths)
    if total and bert_score is not None:
        scores = bert_score.compare(answers, truths)
        for name in ("precision", "recall", "f1"):
            values_by_name |= mean_with_interval(f"bertscore_{name}", [getattr(score, name) for score in scores])
        values_by_name |= {"bertscore_model": bert_score.config.model, "bertscore_layer": bert_score.layer}
    return values_by_name


def bleu(answers: Sequence[str], truths: Sequence[str]) -> dict[str, Any]:
    """Returns `bleu` over all answers, computed with sacrebleu, and `bleu_signature`, which states its settings.

    Raises UserError if sacrebleu is not installed.
    """
    require_libraries("bleu in --metrics", "evaluate", "sacrebleu")
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    score = metric.corpus_score(list(answers), [list(truths)]).score
    return {"bleu": score, "bleu_signature": str(metric.get_signature())}


def rouge(answers: Sequence[str], truths: Sequence[str]) -> dict[str, Any]:
    require_libraries("rouge in --metrics", "evaluate", "rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE))
    scores = [scorer.score(truth, answer) for answer, truth in zip(answers, truths)]
    figures: dict[str, Any] = {}
    for name in ROUGE:
        figures |= mean_with_interval(name, [score[name].fmeasure for score in scores])
    return figures
