"""The lines of a report."""

from __future__ import annotations

import pytest

from worldsmith.data.data_report import DataReport, distribution
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.tools.check.inspect_data import packs_when_full, report_lines


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
    assert "on 12 other processes 8 to 9 packs each" in text
    assert "skipped      20: 10 samples" in text
    assert "pool 98.7%, sequential 90.0%" in " ".join(text.split())


@pytest.mark.parametrize(("last", "later"), [(2, "1.33"), (6, None)])
def test_an_epoch_over_a_long_run_is_said_where_the_first_one_differs(last: int, later: str | None) -> None:
    """Packs of 6 and `last` samples: from the second epoch on, the samples of the next one fill the last pack up."""
    packs = [[150] * 6, [150] * last]
    report = DataReport("data.jsonl", 8, 8, 8, looked_at=8, decoded=True, kept=8)
    report.packs, report.steps, report.later_steps = [2], [2.0], [packs_when_full(packs)]
    text = " ".join(" ".join(report_lines(report, width=80, workers=1)).split())
    assert "an epoch 2 packs, 2 steps" in text
    said = f"over a long run, about {later} steps per epoch"
    assert said in text if later else "over a long run" not in text
