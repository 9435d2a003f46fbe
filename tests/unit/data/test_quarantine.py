from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_disk import largest_file

from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Quarantine, Rejection


def bad(number: int, reason: str = "truncated") -> Rejection:
    return Rejection(f"k{number}", reason, "detail é", f"videos/{number}.mp4", line=number or None)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]


def test_each_sample_is_listed_once_over_epochs_and_resumes(tmp_path: Path) -> None:
    first = Quarantine(tmp_path)
    assert [first.add(bad(0)), first.add(bad(1)), first.add(bad(0))] == [True, True, False]
    again = Quarantine(tmp_path)
    assert [again.add(bad(0)), again.add(bad(2, "missing_file"))] == [True, True]
    assert lines(tmp_path) == [
        {"key": "k0", "path": "videos/0.mp4", "reason": "truncated", "detail": "detail é"},
        {"key": "k1", "path": "videos/1.mp4", "reason": "truncated", "detail": "detail é", "line": 1},
        {"key": "k2", "path": "videos/2.mp4", "reason": "missing_file", "detail": "detail é", "line": 2},
    ]
    assert again.counts == {"truncated": 1, "missing_file": 1}


def test_a_last_line_cut_by_a_crash_does_not_spoil_the_next(tmp_path: Path) -> None:
    Quarantine(tmp_path).add(bad(0))
    file = tmp_path / "quarantine.jsonl"
    file.write_bytes(file.read_bytes() + b'{"key": "k1", "pa')
    Quarantine(tmp_path).add(bad(1))
    assert json.loads(file.read_text().splitlines()[-1])["key"] == "k1"


def test_the_run_stops_past_the_share_with_counts_and_place(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    for number in range(10):
        quarantine.add(bad(number))
        quarantine.check(200, max_bad_fraction=0.05, bad_samples_allowed=0)
    quarantine.add(bad(10, "missing_file"))
    with pytest.raises(
        DataError,
        match=r"11 of 200 samples are bad, 10 are allowed \(skipped: missing_file 1, truncated 10; listed in",
    ):
        quarantine.check(200, max_bad_fraction=0.05, bad_samples_allowed=0)


def test_a_few_bad_samples_never_stop_a_small_set_while_half_is_good() -> None:
    quarantine = Quarantine(None)
    for number in range(3):
        quarantine.add(bad(number))
    quarantine.check(11, max_bad_fraction=0.05, bad_samples_allowed=8)
    with pytest.raises(DataError) as more_than_half:
        quarantine.check(5, max_bad_fraction=0.05, bad_samples_allowed=8)
    with pytest.raises(DataError) as less:
        quarantine.check(11, max_bad_fraction=0.0, bad_samples_allowed=0)
    assert "bad_samples_allowed" not in str(more_than_half.value)  # a larger one would change nothing
    assert "or dataloader_train.bad_samples_allowed (now 0)" in str(less.value)


def test_samples_outside_the_configured_limits_are_listed_but_not_bad() -> None:
    quarantine = Quarantine(None)
    for number in range(100):
        quarantine.add(bad(number, "too_short"))
    quarantine.check(10, max_bad_fraction=0.0, bad_samples_allowed=0)
    assert quarantine.counts["too_short"] == 100


def test_a_list_that_cannot_be_written_costs_a_warning_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine(tmp_path)
    quarantine.add(bad(0))
    with largest_file(100):
        assert [quarantine.add(bad(1)), quarantine.add(bad(2))] == [True, True]
    quarantine.add(bad(3))
    assert quarantine.unwritten == 2
    assert quarantine.counts == {"truncated": 4}
    assert caplog.text.count("cannot be written") == 1
    assert "quarantine.jsonl, but 2 could not be written" in quarantine.describe()
    assert "k3" in (tmp_path / "quarantine.jsonl").read_text()
    assert {"k0", "k3"} <= set(Quarantine(tmp_path)._written)
