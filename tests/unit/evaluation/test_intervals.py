"""Intervals against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import bootstrap

from worldsmith.evaluation.intervals import mean_interval


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = np.random.default_rng(4).normal(3, 2, 25)
    judged = bootstrap((values,), np.mean, n_resamples=9999, method="percentile").confidence_interval
    found = mean_interval(list(values))
    assert found == mean_interval(list(values))
    assert found == pytest.approx((judged.low, judged.high), abs=0.1)
    assert mean_interval([2.0, 2.0, 2.0]) == (2, 2)
    assert mean_interval([1.0]) is None
