"""Scores and yes/no out of answers, and the figures that are made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldsmith.evaluation.intervals import correlation_interval, share_interval
from worldsmith.evaluation.plausibility import correlation, measure_scores, parse_score, ranks
from worldsmith.evaluation.yes_no import measure_yes_no, parse_word


@pytest.mark.parametrize(
    ("text", "score"),
    [("3", 3), ("Score: 3", 3), ("4/5", 4), ("2.5", 2), ("none", None), ("10", None), ("Score: 10", None), ("[5]", 5)],
)
def test_a_score_is_the_first_digit_that_stands_alone(text: str, score: int | None) -> None:
    assert parse_score(text) == score


@pytest.mark.parametrize(
    ("text", "word"), [(" Yes", "yes"), ("no.", "no"), ("NO\n", "no"), ("yes, it does", None), ("", None)]
)
def test_a_word_is_the_whole_answer(text: str, word: str | None) -> None:
    assert parse_word(text) == word


def test_figures_of_scores_by_hand() -> None:
    """Six samples: two right, two off by one, one off by three, one without a score; and one without a truth."""
    said = ["1", "2", "4", "4", "5", "no idea", "3"]
    true = ["1", "2", "3", "5", "2", "4", "unknown"]
    found = measure_scores(said, true)
    assert (found["num_samples"], found["num_gt_parse_failures"], found["num_pred_parse_failures"]) == (7, 1, 1)
    assert found["accuracy"] == pytest.approx(2 / 6)
    assert found["within_one"] == pytest.approx(4 / 6)
    assert found["majority_baseline"] == pytest.approx(2 / 6)
    assert found["mean_absolute_error"] == pytest.approx((0 + 0 + 1 + 1 + 3) / 5)
    pairs = torch.tensor([[1.0, 2, 4, 4, 5], [1.0, 2, 3, 5, 2]])
    assert found["pearson_correlation"] == pytest.approx(float(torch.corrcoef(pairs)[0, 1]), abs=1e-6)
    assert found["spearman_correlation"] == pytest.approx(
        float(torch.corrcoef(torch.tensor([[1.0, 2, 3.5, 3.5, 5], [1.0, 2.5, 4, 5, 2.5]]))[0, 1]), abs=1e-6
    )
    assert np.sum(found["confusion"]) == 6
    assert found["confusion"][4] == [0, 0, 0, 1, 0, 0]  # the 5 was called a 4
    assert found["confusion"][3] == [0, 0, 0, 0, 0, 1]  # the 4 got no score


def test_figures_that_do_not_exist_are_none() -> None:
    assert measure_scores([], [])["accuracy"] is None
    same = measure_scores(["3", "3"], ["1", "5"])
    assert same["pearson_correlation"] is None
    assert same["spearman_correlation"] is None
    nothing = measure_yes_no(["no"], ["no"])
    assert (nothing["precision"], nothing["recall"], nothing["f1"]) == (None, None, None)


def test_figures_of_yes_and_no_by_hand() -> None:
    found = measure_yes_no(["yes", "Yes.", "no", "perhaps", "no", "yes"], ["yes", "no", "no", "yes", "yes", "maybe"])
    assert (found["num_gt_parse_failures"], found["num_pred_parse_failures"]) == (1, 1)
    assert found["accuracy"] == pytest.approx(2 / 5)
    assert found["precision"] == pytest.approx(1 / 2)
    assert found["recall"] == pytest.approx(1 / 3)
    assert found["f1"] == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert found["majority_baseline"] == pytest.approx(3 / 5)
    assert found["confusion"] == [[1, 1, 1], [1, 1, 0]]


def test_intervals_have_published_values() -> None:
    """81 of 263: 0.2553 to 0.3662 (Newcombe 1998, table I, Wilson); r = 0.5 of 30: 0.17 to 0.73 (Fisher)."""
    low, high = share_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert share_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    low, high = correlation_interval(0.5, 30)
    assert (round(low, 2), round(high, 2)) == (0.17, 0.73)
    assert correlation_interval(1.0, 30) is None
    assert share_interval(0, 0) is None


def test_ranks_share_ties() -> None:
    assert ranks(np.array([3.0, 1, 3, 2])).tolist() == [3.5, 1, 3.5, 2]
    assert correlation(np.array([[1.0, 1.0]])) is None
