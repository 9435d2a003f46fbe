"""TensorBoard files, read back with TensorBoard's own reader."""

from __future__ import annotations

import threading

import torch
from small_disk import largest_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldsmith.monitor.tensorboard_log import TensorBoardLog


def curves(folder) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


def test_numbers_become_curves_and_texts_do_not(tmp_path):
    with TensorBoardLog(tmp_path) as log:
        log.write(1, {"loss": 0.5, "lr": torch.tensor(0.25), "note": "text", "time": {"step": 2}})
    assert curves(tmp_path) == {"loss": [(1, 0.5)], "lr": [(1, 0.25)], "time/step": [(1, 2.0)]}


def test_a_resume_replaces_what_came_after_the_resumed_step(tmp_path):
    with TensorBoardLog(tmp_path) as log:
        for step in range(1, 6):
            log.write(step, {"loss": 1.0})
    with TensorBoardLog(tmp_path, resumed_step=3) as log:
        log.write(4, {"loss": 2.0})
    assert curves(tmp_path)["loss"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_files_that_cannot_be_written_end_the_curves_and_nothing_else(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)  # the writer's thread dies of it
    before = set(threading.enumerate())
    log = TensorBoardLog(tmp_path)
    with largest_file(200):
        for step in range(500):
            log.write(step, {"loss": 1.0})
        log.close()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert log.writer is None
    log.write(501, {"loss": 1.0})
    assert caplog.text.count("the curves end here") == 1
