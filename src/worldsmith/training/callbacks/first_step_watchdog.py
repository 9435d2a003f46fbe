"""Says where a run stands whose first step does not end."""

from __future__ import annotations

import faulthandler
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from worldsmith.config.declare.ranges import Range
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)


class FirstStepWatchdog(Callback):
    """Looks at every process once, when its first step (reading the first batch included) takes too long.

    The file `rank_<n>.txt` then has where each thread stands; it is written by a thread of the interpreter that needs
    no lock, so also when everything hangs.
    """

    class Config(Callback.Config):
        after_seconds: Annotated[float, Range(gt=0)] = 1800.0
        """How long the first step may take."""
        abort: bool = False
        """Whether the process then ends, with exit code 1, rather than waits on."""

    config: Config
    file: IO[str] | None = None

    def on_run_start(self, trainer: TrainingRun) -> None:
        path, seconds = self.folder / f"rank_{trainer.world.rank}.txt", self.config.after_seconds
        try:
            self.folder.mkdir(exist_ok=True)
            self.file = path.open("w")
        except OSError as error:
            logger.warning("%s cannot be written: nothing watches the first step: %s", path, error)
            return
        told = ": it ends here" if self.config.abort else "; it goes on waiting"
        about = f"the first step has not ended after {seconds:g} seconds; {path} has where its threads stand{told}"
        self.timer = threading.Timer(max(seconds - 1, seconds / 2), logger.warning, (about,))
        self.timer.daemon = True
        self.timer.start()
        faulthandler.dump_traceback_later(seconds, file=self.file, exit=self.config.abort)

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        self.leave()

    def on_train_end(self, trainer: TrainingRun) -> None:
        self.leave()

    def leave(self) -> None:
        """Stops watching, and removes a file that nothing was written to."""
        if self.file is None:
            return
        faulthandler.cancel_dump_traceback_later()
        self.timer.cancel()
        self.file.close()
        path, self.file = Path(self.file.name), None
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
