"""TensorBoard event files of a run's metrics."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.lines import append
from worldsmith.monitor.sinks import numbers

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

PREFIX = "events.out.tfevents."


class TensorBoardLog:
    """Writes every numeric metric as a curve; texts and lists have no curve and stay in `metrics.jsonl`.

    On resume the readers are told to forget what an interrupted run wrote after `resumed_step` (0 for a new run).
    Raises OSError when the files cannot be written, as on a full disk; they stay readable.
    """

    def __init__(self, folder: Path, *, resumed_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        stamps = file_stamps(folder)
        stamp = max([int(time.time()), *(stamp + 1 for stamp in stamps)])
        self.file = (folder / f"{PREFIX}{stamp:010d}.{socket.gethostname()}").open("xb", buffering=0)
        self._add(Event(file_version="brain.Event:2"))
        if stamps:
            self._add(Event(step=resumed_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one point to the curve of each number."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(metrics)]
        self._add(Event(step=step, summary=Summary(value=values)))

    def close(self, *, failed: bool = False) -> None:
        self.file.close()

    def _add(self, event: Event) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        event.wall_time = time.time()
        record = BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        append(self.file, record.getvalue())

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def file_stamps(folder: Path) -> list[int]:
    """The numbers in the names of the files that are there, which readers take in the order of their names.

    TensorBoard's own writer puts the second there, and then host, process and a counter as text: what two runs wrote
    within a second, or by clocks that differ, is read in any order. So a new file here has a greater number than all.
    """
    found = (re.match(re.escape(PREFIX) + r"(\d+)", path.name) for path in folder.iterdir())
    return [int(match[1]) for match in found if match]
