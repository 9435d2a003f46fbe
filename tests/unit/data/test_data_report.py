"""Percentiles, histograms and the lines of a report."""

from __future__ import annotations

import pytest

from worldsmith.data.report.data_report import DataReport, distribution, histogram
from worldsmith.data.report.text import report_lines
from worldsmith.data.stream.quarantine import Rejection


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


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_the_terminal(width: int) -> None:
    report = DataReport("data.jsonl", 300, 300, 300, looked_at=300, decoded=True, kept=290, cap=500)
    long = "a very long reason why this clip cannot be used, with\nline breaks " * 9
    report.leave_out([Rejection(f"clip{n}", "truncated", long, "clip.mp4", n) for n in range(20)])
    report.tokens, report.seconds = distribution(range(300)), distribution([0.01] * 300)
    report.notes, report.said = {"captions_truncated": 3}, {"captions_truncated": [long, "short"]}
    report.count_features([{"size": [f"{n % 11}x{n}"], "seconds": [n / 7]} for n in range(300)])
    report.duplicates = [[f"clip{n}" for n in range(100)]]
    report.packer, report.fill = "pool", {"pool": 0.987, "sequential": 0.9}
    report.packs, report.steps = [9, 9, 9, 8] * 5, [4.5] * 20
    lines = list(report_lines(report, width=width, workers=4))
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() and "\n" not in line for line in lines)
    text = "\n".join(lines)
    assert "truncated      20" in text
    assert "left out     20: 10 samples, and 10 in the records" in text
    assert "on 12 further ones 8 to 9 packs each" in text
    assert "pool 98.7%, sequential 90.0%" in " ".join(text.split())
