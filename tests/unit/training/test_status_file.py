"""`status.json` while a process lives."""

from __future__ import annotations

import json
import threading
from datetime import datetime

from small_disk import largest_file

from worldsmith.training.callbacks.progress import StatusFile


def test_it_is_there_at_once_beats_in_a_thread_and_ends_with_the_last_status(tmp_path):
    status, beats = {"step": 0}, []
    again = threading.Event()

    def read():
        beats.append(threading.current_thread().name)
        if len(beats) == 4:
            again.set()
        return dict(status)

    file = StatusFile(tmp_path / "status.json", read, seconds=0.01)
    first = json.loads(file.path.read_text())
    assert (first["step"], beats[0]) == (0, threading.current_thread().name)
    assert again.wait(30)
    assert beats[1:4] == ["status"] * 3
    status["step"] = 7
    file.close()
    last = json.loads(file.path.read_text())
    assert last["step"] == 7
    assert datetime.fromisoformat(last["updated"]) > datetime.fromisoformat(first["updated"])
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert "status" not in [thread.name for thread in threading.enumerate()]


def test_a_disk_that_is_full_is_said_once_and_the_old_status_stays(tmp_path, caplog):
    status = {"note": "short"}
    file = StatusFile(tmp_path / "status.json", lambda: status, seconds=1000)
    with largest_file(100):
        status["note"] = "long" * 100
        file.write()
        file.write()
    assert json.loads(file.path.read_text())["note"] == "short"
    assert caplog.text.count("cannot be written, the run continues") == 1
    file.close()
    assert json.loads(file.path.read_text())["note"] == "long" * 100
