"""Writes one stream of metrics to all its destinations, such as TensorBoard event files and Weights & Biases."""

from __future__ import annotations

import logging
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from worldsmith.config.errors import describe_error
from worldsmith.files.atomic import write_text
from worldsmith.files.lines import append

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

    from worldsmith.config.sections import JobConfig


logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Destination of metrics, such as a file. `Sinks` catches its exceptions, so that they do not end the run."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the metrics after `step` optimizer steps: numbers, strings, lists, and mappings of them."""

    def close(self, *, failed: bool = False) -> None:
        """Closes the sink.

        Args:
            failed: Whether the run ended with an error.
        """


class Sinks:
    """Passes all metrics to several named destinations.

    If a write to a sink fails, the run continues: the first exception of each sink is logged, and all are counted.
    """

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.lost: Counter[str] = Counter()
        """Number of failed writes, by sink."""

    def add(self, name: str, build: Callable[[], Sink]) -> None:
        """Adds the sink that `build()` returns under `name`; if `build` raises an exception, only logs a warning."""
        try:
            self.sinks[name] = build()
        except Exception as error:
            logger.warning("%s cannot be written, the run continues without it: %s", name, describe_error(error))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, sink in self.sinks.items():
            try:
                sink.write(step, metrics)
            except Exception as error:
                self.lost[name] += 1
                if self.lost[name] == 1:
                    logger.warning("%s cannot be written, the run continues: %s", name, describe_error(error))

    def close(self, *, failed: bool = False) -> None:
        """Closes all sinks and logs how many writes have failed; `failed`: whether the run ended with an error."""
        for name, sink in self.sinks.items():
            try:
                sink.close(failed=failed)
            except Exception as error:
                logger.warning("%s could not be closed: %s", name, describe_error(error))
            if self.lost[name]:
                logger.warning("%s: %d writes have failed, and their metrics are missing", name, self.lost[name])
        self.sinks = {}


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Returns (name, value) of numeric metrics; values of nested mappings are named `outer/inner`, after `prefix`."""
    found: list[tuple[str, float]] = []
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found += numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "ndim", None) == 0):
            found.append((prefix + key, float(value)))
    return found


EVENT_FILE_PREFIX = "events.out.tfevents."


class TensorBoardLog:
    """Writes every numeric metric to TensorBoard event files; strings and lists are only in `metrics.jsonl`.

    Args:
        folder: Folder of the event files.
        resumed_step: Step at which the run resumes, 0 for a new run. TensorBoard then hides the points of later steps
            that were written before the run was resumed.

    Raises:
        OSError: If the files cannot be written, as on a full disk; they stay readable.
    """

    def __init__(self, folder: Path, *, resumed_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        stamps = file_stamps(folder)
        stamp = max([int(time.time()), *(stamp + 1 for stamp in stamps)])
        self.file = (folder / f"{EVENT_FILE_PREFIX}{stamp:010d}.{socket.gethostname()}").open("xb", buffering=0)
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


def file_stamps(folder: Path) -> list[int]:
    """Returns the numbers in the names of the existing event files; readers load the files in the order of their names.

    TensorBoard's own writer uses the time in seconds, then host, process and a counter as text. So files of two runs
    within a second, or of machines with different clocks, are read in arbitrary order. A new file therefore gets a
    number that is greater than all existing ones.
    """
    found = (re.match(re.escape(EVENT_FILE_PREFIX) + r"(\d+)", path.name) for path in folder.iterdir())
    return [int(match[1]) for match in found if match]


ID_FILE = "wandb_id.txt"


class WandbLog:
    """Sends every numeric metric to Weights & Biases, or stores it for `wandb sync` in `wandb/` of the run folder.

    A resumed run keeps its id, which is stored in `wandb_id.txt`; steps that it repeats appear twice. The command
    line, the environment and the code of the process are not sent. Exceptions of `wandb` are passed on.
    """

    def __init__(self, folder: Path, job: JobConfig, tree: Mapping[str, Any]) -> None:
        """Starts or resumes a Weights & Biases run.

        Args:
            folder: Run folder.
            job: Job section of the config: mode, project, group and name.
            tree: Config as plain data, which is shown next to the curves.
        """
        import wandb

        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        self.run = wandb.init(
            dir=folder.absolute(),
            id=stable_id(folder / ID_FILE),
            resume="allow",
            mode=job.wandb_mode,
            project=job.project,
            group=job.group,
            name=job.name,
            config=dict(tree),
            settings=settings,
        )
        # A step of its own: wandb's own counter refuses the steps that a resumed run does again.
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.run.log({**dict(numbers(metrics)), "step": step})

    def close(self, *, failed: bool = False) -> None:
        import wandb

        try:
            self.run.finish(exit_code=int(failed))
        except Exception:
            with suppress(Exception):  # its process is gone: no code may wait for it at exit
                wandb.teardown()
            raise


def stable_id(path: Path) -> str:
    """Returns the id in the file `path`; if the file does not exist, creates it with a new id."""
    if not path.exists():
        write_text(path, f"{secrets.token_hex(4)}\n")
    return path.read_text(encoding="utf-8").strip()
