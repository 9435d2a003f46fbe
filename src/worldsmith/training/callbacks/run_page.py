"""`report.html`: the page of the run, rewritten while it goes on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count
from worldsmith.monitor.message_log import describe
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from pathlib import Path

    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)

PAUSE_PER_COST = 100
"""Seconds between two rebuilds for each second of a processor that one takes: it costs a hundredth of one at most."""


class RunPage(Callback):
    """Rewrites `report.html` in the run folder: at the start, in a process of its own now and then, and at the end.

    No step waits for it, and a page that cannot be made never ends a run: that is said once. On rank 0.
    """

    class Config(Callback.Config):
        enabled: bool = True
        """Whether the page is made; `worldsmith report RUN` makes it at any time."""
        every_seconds: Count = 30
        """Seconds between two rebuilds, at least; more where a rebuild takes over a hundredth of that."""

    config: Config
    child: subprocess.Popen[bytes] | None = None
    has_failed = False
    due = 0.0

    def on_run_start(self, trainer: TrainingRun) -> None:
        if self.makes_page(trainer):
            self._write(trainer, {"state": "starting"})

    def start_lines(self, trainer: TrainingRun) -> Iterator[str]:
        if self.makes_page(trainer):
            yield f"run page     {(trainer.run_folder / 'report.html').resolve()}"

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if self.child is not None:
            self._look_after(os.WNOHANG)
        elif self.makes_page(trainer) and time.monotonic() >= self.due:
            self._rebuild(trainer.run_folder)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if not self.makes_page(trainer):
            return
        if self.child is not None:
            self._look_after(0)
        error = sys.exception()
        reason = trainer.reason if error is None else describe(error)
        state = "failed" if trainer.outcome is None else trainer.outcome.value
        self._write(trainer, {"state": state, "reason": reason})

    def makes_page(self, trainer: TrainingRun) -> bool:
        return self.config.enabled and trainer.world.is_main

    def _write(self, trainer: TrainingRun, known: Mapping[str, Any]) -> None:
        """Makes the page here, where no step waits."""
        from worldsmith.monitor.page.run_page import write_page

        begun = time.process_time()
        try:
            write_page(trainer.run_folder, known={"step": trainer.iteration, **known})
        except Exception as error:  # whatever it is: the run is worth more
            self._fail(f"{type(error).__name__}: {error}")
        self._wait_for(time.process_time() - begun)

    def _rebuild(self, folder: Path) -> None:
        words = [sys.executable, "-m", "worldsmith.monitor.page", str(folder)]
        nothing = subprocess.DEVNULL
        try:
            self.child = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing)
        except OSError as error:
            self._fail(str(error))
            self._wait_for(0.0)

    def _look_after(self, how: int) -> None:
        """Lets go of a rebuild that has ended; `how` is that of `os.wait4`."""
        assert self.child is not None
        try:
            pid, status, used = os.wait4(self.child.pid, how)
        except ChildProcessError:  # another part of the process has seen it end
            self.child.returncode, self.child = 0, None
            return
        if not pid:
            return
        self.child.returncode = code = os.waitstatus_to_exitcode(status)
        self.child = None
        if code:
            self._fail(f"the process that makes it ended with code {code}")
        self._wait_for(used.ru_utime + used.ru_stime)

    def _wait_for(self, cost: float) -> None:
        """`cost` in seconds of a processor."""
        self.due = time.monotonic() + max(self.config.every_seconds, PAUSE_PER_COST * cost)

    def _fail(self, why: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            logger.warning("the run page cannot be rebuilt, the run goes on without it: %s", why)
