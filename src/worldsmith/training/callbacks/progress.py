"""`IterSpeed` and `HeartBeat`: progress of the run in the terminal and in `status.json`."""

from __future__ import annotations

import datetime
import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.config.declare.ranges import Range
from worldsmith.files.atomic import replacing
from worldsmith.monitor.throughput import Activity
from worldsmith.training.callbacks.base import Callback, TrainingRun, describe_end

if TYPE_CHECKING:
    from worldsmith.monitor.terminal_view import TerminalView
    from worldsmith.training.step import StepResult


class IterSpeed(Callback):
    """Shows step, loss, tokens/s, remaining time and the current activity in the terminal, on rank 0."""

    class Config(Callback.Config):
        """Config without settings. A terminal shows one line, which is updated; a file gets lines at intervals."""

    view: TerminalView | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        from worldsmith.monitor.terminal_view import TerminalView

        self.view = TerminalView(
            total_steps=trainer.config.trainer.max_iter,
            first_step=trainer.iteration,
            meanwhile=lambda: None if (now := current_activity(trainer)).name == "training" else now,
        )
        self.view.__enter__()

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if self.view is None:
            return
        self.view.update(
            trainer.iteration,
            loss=step.loss,
            tokens_per_second=trainer.pace.tokens_per_second,
            remaining_seconds=trainer.pace.remaining_seconds(trainer.config.trainer.max_iter - trainer.iteration),
        )

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.view is not None:
            self.view.__exit__(None, None, None)
            self.view = None


class HeartBeat(Callback):
    """Writes `status.json` in the run folder: state, step, current activity and remaining time.

    `state` is `starting` until the first batch is read, then `running`, and at the end `finished`, `stopped` (can be
    resumed) or `failed`, with a `reason`. After a kill, the time `updated` is old and no process has locked the run
    folder.
    """

    class Config(Callback.Config):
        every_seconds: Annotated[float, Range(gt=0)] = 2.0
        """Seconds between two heartbeats; a thread writes them, also during a long step."""

    config: Config
    file: StatusFile | None = None
    state: Mapping[str, str | None] = {"state": "starting", "reason": None}

    def on_run_start(self, trainer: TrainingRun) -> None:
        if not trainer.world.is_main:
            return
        self.started = now()
        path = trainer.run_folder / "status.json"
        self.file = StatusFile(path, lambda: self.status(trainer), seconds=self.config.every_seconds)

    def on_train_start(self, trainer: TrainingRun) -> None:
        self.state = {"state": "running", "reason": None}

    def on_train_end(self, trainer: TrainingRun) -> None:
        if self.file is None:
            return
        self.state = describe_end(trainer)
        self.file.close()
        self.file = None

    def status(self, trainer: TrainingRun) -> dict[str, Any]:
        most = trainer.config.trainer.max_iter
        return {
            **self.state,
            "step": trainer.iteration,
            "max_iter": most,
            "started": self.started,
            "remaining_seconds": trainer.pace.remaining_seconds(most - trainer.iteration),
            "doing": current_activity(trainer).name,
        }


def current_activity(trainer: TrainingRun) -> Activity:
    """Returns the current activity of the run, such as "saving", and its completed fraction. Thread-safe.

    During training, a long operation that the run's task reports is returned instead of "training".
    """
    work = trainer.task.long_work if trainer.doing == "training" else None
    return Activity(*(work or (trainer.doing, trainer.share)))


logger = logging.getLogger(__name__)


class StatusFile:
    """Writes a status to a JSON file: at construction, every `seconds` in a background thread, and in `close`.

    The file is replaced atomically. The first write error, as on a full disk, is logged; later writes are still tried.

    Args:
        path: JSON file to write.
        read: Returns the status as JSON data; called in both threads. The current time is added as `updated`.
        seconds: Interval in seconds.
    """

    def __init__(self, path: Path, read: Callable[[], Mapping[str, Any]], *, seconds: float) -> None:
        self.path, self.read, self.seconds = path, read, seconds
        self.failed = False
        self._closed = threading.Event()
        self.write()
        self._thread = threading.Thread(target=self._beat, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.write()

    def write(self) -> None:
        """Writes the current status and time."""
        status = {**self.read(), "updated": now()}
        try:
            with replacing(self.path, durable=False) as aside:
                aside.write_text(json.dumps(status, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            if not self.failed:
                logger.warning("%s cannot be written, the run continues: %s", self.path, error)
            self.failed = True

    def _beat(self) -> None:
        while not self._closed.wait(self.seconds):
            self.write()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
