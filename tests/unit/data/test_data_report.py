"""Percentiles and histograms of a report."""

from __future__ import annotations

import pytest

from worldsmith.data.data_report import distribution, histogram


def test_percentiles_are_values_that_are_there() -> None:
    found = distribution([*range(1, 101)])
    assert (found.count, found.total, found.p50, found.p95, found.max) == (100, 5050, 50, 95, 100)
    one = distribution([7.5])
    assert (one.p50, one.p95, one.max) == (7.5, 7.5, 7.5)
    assert distribution([]) is None


@pytest.mark.parametrize(
    ("values", "labels", "counts"),
    [
        ([24.0, 30.0, 24.0, 23.976], ["23.98", "24", "30"], [1, 2, 1]),
        (list(range(16)), ["0–1", "2–3", "4–5", "6–7", "8–9", "10–11", "12–13", "14–15"], [2] * 8),
        (list(range(9)), ["0–1", "2–3", "4–5", "6–7", "8"], [2, 2, 2, 2, 1]),
        ([0.5 * n for n in range(17)], ["0–1", "1–2", "2–3", "3–4", "4–5", "5–6", "6–7", "7–8"], [2] * 7 + [3]),
        (["a", "b", "a"], ["a", "b"], [2, 1]),
        ([*"aabbccddeeffgghi"], ["a", "b", "c", "d", "e", "f", "g", "2 others"], [2] * 8),
    ],
)
def test_every_value_is_in_one_bar(values: list, labels: list[str], counts: list[int]) -> None:
    found = histogram(values)
    assert (found.labels, found.counts) == (labels, counts)
    assert sum(found.counts) == len(values)
