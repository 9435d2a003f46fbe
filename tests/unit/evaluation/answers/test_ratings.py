"""Scores out of answers, and the figures that are made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldsmith.evaluation.answers.accuracy import correlation, measure_ratings, ranks
from worldsmith.evaluation.answers.parse_answers import parse_rating
from worldsmith.evaluation.intervals import correlation_interval, wilson_interval


@pytest.mark.parametrize(
    ("text", "score"),
    [("3", 3), ("Score: 3", 3), ("4/5", 4), ("2.5", 2), ("none", None), ("10", None), ("Score: 10", None), ("[5]", 5)],
)
def test_a_score_is_the_first_digit_that_stands_alone(text: str, score: int | None) -> None:
    assert parse_rating(text) == score


def test_figures_of_scores_by_hand() -> None:
    """Six samples: two right, two off by one, one off by three, one without a score; and one without a truth."""
    said = ["1", "2", "4", "4", "5", "no idea", "3"]
    true = ["1", "2", "3", "5", "2", "4", "unknown"]
    found = measure_ratings(said, true)
    assert (found["total"], found["correct"], found["truths_unread"], found["unparsed"]) == (6, 2, 1, 1)
    assert found["accuracy"] == pytest.approx(2 / 6)
    assert found["within_one"] == pytest.approx(4 / 6)
    assert found["majority_baseline"] == pytest.approx(2 / 6)
    assert found["mean_absolute_error"] == pytest.approx((0 + 0 + 1 + 1 + 3) / 5)
    pairs = torch.tensor([[1.0, 2, 4, 4, 5], [1.0, 2, 3, 5, 2]])
    assert found["pearson_correlation"] == pytest.approx(float(torch.corrcoef(pairs)[0, 1]), abs=1e-6)
    assert found["spearman_correlation"] == pytest.approx(
        float(torch.corrcoef(torch.tensor([[1.0, 2, 3.5, 3.5, 5], [1.0, 2.5, 4, 5, 2.5]]))[0, 1]), abs=1e-6
    )
    rows = found["confusion"]["rows"]
    assert np.sum(rows) == 6
    assert rows[4] == [0, 0, 0, 1, 0, 0]  # the 5 was called a 4
    assert rows[3] == [0, 0, 0, 0, 0, 1]  # the 4 got no score


def test_figures_that_do_not_exist_are_none() -> None:
    assert measure_ratings([], [])["accuracy"] is None
    same = measure_ratings(["3", "3"], ["1", "5"])
    assert same["pearson_correlation"] is None
    assert same["spearman_correlation"] is None


def test_intervals_have_published_values() -> None:
    """81 of 263: 0.2553 to 0.3662 (Newcombe 1998, table I, Wilson); r = 0.5 of 30: 0.17 to 0.73 (Fisher)."""
    low, high = wilson_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    low, high = correlation_interval(0.5, 30)
    assert (round(low, 2), round(high, 2)) == (0.17, 0.73)
    assert correlation_interval(1.0, 30) is None
    assert wilson_interval(0, 0) is None


def test_ranks_share_ties() -> None:
    assert ranks(np.array([3.0, 1, 3, 2])).tolist() == [3.5, 1, 3.5, 2]
    assert correlation(np.array([[1.0, 1.0]])) is None
