"""TensorBoard files, read back with TensorBoard's own reader."""

from __future__ import annotations

import time
from contextlib import closing

import torch
from small_disk import largest_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from worldsmith.monitor.sinks import TensorBoardLog


def curves(folder) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


def test_numbers_become_curves_and_texts_do_not(tmp_path):
    with closing(TensorBoardLog(tmp_path)) as log:
        log.write(1, {"loss": 0.5, "lr": torch.tensor(0.25), "note": "text", "time": {"step": 2}})
    assert curves(tmp_path) == {"loss": [(1, 0.5)], "lr": [(1, 0.25)], "time/step": [(1, 2.0)]}


def test_a_resume_replaces_what_came_after_the_resumed_step(tmp_path):
    with closing(TensorBoardLog(tmp_path)) as log:
        for step in range(1, 6):
            log.write(step, {"loss": 1.0})
    with closing(TensorBoardLog(tmp_path, resumed_step=3)) as log:
        log.write(4, {"loss": 2.0})
    assert curves(tmp_path)["loss"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_twelve_resumes_within_a_second_and_on_a_clock_that_goes_back_are_read_in_order(tmp_path, monkeypatch):
    for resume in range(12):
        monkeypatch.setattr(time, "time", lambda resume=resume: 1_800_000_000.0 - 100 * (resume // 6))
        with closing(TensorBoardLog(tmp_path, resumed_step=resume)) as log:
            log.write(resume + 1, {"loss": float(resume)})
            log.write(resume + 2, {"loss": -1.0})
    assert curves(tmp_path)["loss"] == [*((resume + 1, resume) for resume in range(12)), (13, -1.0)]


def test_files_of_other_writers_are_read_before(tmp_path):
    with SummaryWriter(str(tmp_path)) as other:
        other.add_scalar("loss", 1.0, 1)
        other.add_scalar("loss", 1.0, 2)
    with closing(TensorBoardLog(tmp_path, resumed_step=1)) as log:
        log.write(2, {"loss": 2.0})
    assert curves(tmp_path)["loss"] == [(1, 1.0), (2, 2.0)]


def test_files_that_cannot_grow_stay_readable_and_go_on_later(tmp_path):
    lost = 0
    with closing(TensorBoardLog(tmp_path)) as log:
        for step in range(20):
            with largest_file(200):
                try:
                    log.write(step, {"loss": 1.0})
                except OSError:
                    lost += 1
        log.write(20, {"loss": 2.0})
    points = curves(tmp_path)["loss"]
    assert points == [*((step, 1.0) for step in range(20 - lost)), (20, 2.0)]
    assert 11 <= lost < 20
