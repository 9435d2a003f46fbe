"""The metrics file over resumes, kills and odd values."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from metrics_files import read_metrics
from small_disk import largest_file

from worldsmith.monitor.metrics_log import MetricsLog


def test_every_line_is_an_object_with_its_step_and_is_there_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(path)
    log.write(1, {"loss": 0.5, "lr": np.float32(0.25), "note": "größer", "parts": {"video": [1, 2.0]}})
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "step": 1,
        "loss": 0.5,
        "lr": 0.25,
        "note": "größer",
        "parts": {"video": [1, 2.0]},
    }
    log.close()


def test_a_resume_removes_later_steps_so_that_none_is_there_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsLog(path)) as log:
        for step in range(1, 8):
            log.write(step, {"loss": float(step)})
    with closing(MetricsLog(path, resumed_step=4)) as log:
        for step in range(5, 7):
            log.write(step, {"loss": -1.0})
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3, 4, 5, 6]
    assert [record["loss"] for record in read_metrics(path)][-2:] == [-1.0, -1.0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_run_in_an_old_folder_starts_empty(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsLog(path)) as log:
        log.write(1, {})
    MetricsLog(path).close()
    assert path.read_text() == ""


@pytest.mark.parametrize(("last", "removed"), [(4, "1 line"), (6, "3 lines")])
def test_lines_of_steps_that_are_repeated_are_removed_and_said(tmp_path, caplog, last, removed):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, last + 1)))
    with caplog.at_level(logging.INFO, logger="worldsmith"):
        MetricsLog(path, resumed_step=3).close()
    assert caplog.messages == [f"{path}: removed {removed} written after step 3, because the run resumes at this step"]


def test_a_line_that_was_cut_off_is_removed_and_said(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    with caplog.at_level(logging.WARNING, logger="worldsmith"), closing(MetricsLog(path, resumed_step=5)) as log:
        log.write(6, {"loss": 0.1})
    assert [record["step"] for record in read_metrics(path)] == [1, 6]
    assert "removed 1 incomplete line, because the run was interrupted" in caplog.text


def test_a_process_that_is_killed_leaves_every_line_that_it_wrote(tmp_path):
    """SIGKILL right after the last write: nothing waits in a buffer."""
    path = tmp_path / "metrics.jsonl"
    program = (
        "import os, signal, pathlib; from worldsmith.monitor.metrics_log import MetricsLog\n"
        f"log = MetricsLog(pathlib.Path({str(path)!r}))\n"
        "for step in range(1, 51): log.write(step, {'loss': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [record["step"] for record in read_metrics(path)] == list(range(1, 51))


def test_numbers_that_json_cannot_hold_are_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsLog(path)) as log:
        log.write(1, {"loss": float("nan"), "norm": float("inf")})
    assert path.read_text() == '{"step": 1, "loss": null, "norm": null}\n'


def test_a_value_that_is_no_metric_is_refused_by_name(tmp_path):
    with (
        closing(MetricsLog(tmp_path / "metrics.jsonl")) as log,
        pytest.raises(TypeError, match=r"metric 'parts\.x' is a object"),
    ):
        log.write(1, {"parts": {"x": object()}})


def test_lines_that_cannot_be_written_leave_no_half(tmp_path):
    """Once there is room again, the next line is whole."""
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsLog(path)) as log:
        log.write(1, {"note": "x" * 60})
        with largest_file(150):
            for step in (2, 3):
                with pytest.raises(OSError, match="No space left"):
                    log.write(step, {"note": "x" * 60})
        log.write(4, {})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 4]
