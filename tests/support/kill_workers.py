"""A callback that kills the processes of a run that read its data."""

from __future__ import annotations

import multiprocessing
import os

from worldsmith.training.callbacks.base import Callback
from worldsmith.training.step import StepResult
from worldsmith.training.trainer import Trainer


class KillWorkers(Callback):
    """Kills the processes that read data, in every second step."""

    def on_before_optimizer_step(self, trainer: Trainer, step: StepResult) -> None:
        if step.inputs.index % 2:
            for worker in multiprocessing.active_children():
                worker.kill()
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
