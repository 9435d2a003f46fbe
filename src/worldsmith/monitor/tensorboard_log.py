"""TensorBoard event files of a run's metrics."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Mapping
from io import BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.files.lines import append

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

logger = logging.getLogger(__name__)

PREFIX = "events.out.tfevents."


class TensorBoardLog:
    """Writes every numeric metric as a curve; texts and lists have no curve and stay in `metrics.jsonl`.

    On resume the readers are told to forget what an interrupted run wrote after `resumed_step` (0 for a new run). When
    the files cannot be written, as on a full disk, that is said and the curves end: the run goes on.
    """

    def __init__(self, folder: Path, *, resumed_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.folder = folder
        self.file: FileIO | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stamps = file_stamps(folder)
            stamp = max([int(time.time()), *(stamp + 1 for stamp in stamps)])
            self.file = (folder / f"{PREFIX}{stamp:010d}.{socket.gethostname()}").open("xb", buffering=0)
        except OSError as error:
            self._give_up(error)
            return
        self._add(Event(file_version="brain.Event:2"))
        if stamps:
            self._add(Event(step=resumed_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds one point to the curve of each number; nested mappings give curves named `outer/inner`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(metrics)]
        self._add(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _add(self, event: Event) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self.file is None:
            return
        event.wall_time = time.time()
        record = BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        try:
            append(self.file, record.getvalue())
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.file = None
        logger.warning("the TensorBoard files in %s cannot be written, the curves end here: %s", self.folder, error)

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


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numeric metrics with their full names."""
    found: list[tuple[str, float]] = []
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found += numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "ndim", None) == 0):
            found.append((prefix + key, float(value)))
    return found
