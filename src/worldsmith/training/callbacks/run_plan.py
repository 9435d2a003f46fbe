"""`plan.json`: what the run needs as `worldsmith plan` says, to be compared with what is measured."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.config.declare.class_tags import trusted_packages
from worldsmith.config.declare.ranges import NotNegative
from worldsmith.distributed.gpus import GIB, word_of_device
from worldsmith.monitor.run_record import DISTRIBUTED_VARIABLES
from worldsmith.training.callbacks.base import Callback, TrainingRun

if TYPE_CHECKING:
    from worldsmith.training.step import Step

logger = logging.getLogger(__name__)

FILE = "plan.json"
LOWEST = 19
"""Of the priorities of processes."""


class RunPlan(Callback):
    """Plans the run while it goes on: `plan.json` in the run folder, which the run page sets beside what is measured.

    A process of its own, of the lowest priority, without a GPU, carries out a step without memory; no step waits for
    it. It ends with the run. A plan that cannot be made is said once and ends nothing. On rank 0.
    """

    class Config(Callback.Config):
        enabled: bool = True
        """Whether the plan is made; `worldsmith plan RUN --json > RUN/plan.json` makes it at any time."""
        least_parameters: NotNegative = 100_000_000
        """Networks of fewer are not planned: they fit, and starting the planner takes longer than their steps."""

    config: Config
    child: subprocess.Popen[bytes] | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not (self.config.enabled and trainer.world.is_main):
            return
        if sum(parameter.numel() for parameter in trainer.model.network.parameters()) < self.config.least_parameters:
            return
        words = plan_words(trainer.run_folder, trainer.world.size, trainer.world.device)
        environment = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED_VARIABLES}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        try:
            with (self.folder / FILE).open("wb") as out, (self.folder / "said.txt").open("wb") as said:
                self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=said, env=environment)
        except OSError as error:
            self._fail(str(error))
            return
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.child.pid, LOWEST)

    def on_training_step_end(self, trainer: TrainingRun, step: Step) -> None:
        if self.child is not None and self.child.poll() is not None:
            self._take(trainer.run_folder, self.child.returncode)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if not (self.config.enabled and trainer.world.is_main):
            return
        if self.child is not None:
            if self.child.poll() is None:
                self.child.terminate()
                self.child.wait()
                self.child = None
                logger.info("the run ends before its plan is made: worldsmith plan %s", trainer.run_folder)
            else:
                self._take(trainer.run_folder, self.child.returncode)
        if (trainer.run_folder / FILE).exists():
            self._compare(trainer.run_folder)

    def _take(self, folder: Path, code: int) -> None:
        """Puts the plan in place, whole, and says it in a line."""
        self.child = None
        from worldsmith.monitor.page.plan_check import plan_in_a_line

        try:
            if code:
                lines = (self.folder / "said.txt").read_text(encoding="utf-8", errors="replace").split("\n")
                self._fail(next((line for line in reversed(lines) if line.strip()), f"exit code {code}"))
                return
            line = plan_in_a_line(json.loads((self.folder / FILE).read_text(encoding="utf-8")))
            os.replace(self.folder / FILE, folder / FILE)
        except (OSError, ValueError) as error:
            self._fail(f"{FILE}: {error}")
            return
        logger.info("plan         %s", line)

    def _compare(self, folder: Path) -> None:
        """Says what was measured beside what was planned."""
        from worldsmith.monitor.page.plan_check import checks_in_a_line, plan_checks
        from worldsmith.monitor.page.run_files import read_run

        try:
            line = checks_in_a_line(plan_checks(read_run(folder)))
        except Exception as error:  # whatever it is: the run is worth more
            self._fail(f"{type(error).__name__}: {error}")
            return
        if line:
            logger.info("plan         %s", line)

    def _fail(self, why: str) -> None:
        logger.warning("the plan of the run is not there, and it goes on without: %s", why)


def plan_words(run_folder: Path, processes: int, device: str) -> list[str]:
    """The command that plans the run of the folder on GPUs such as that of this process."""
    trusted = [word for name in trusted_packages() if name != "worldsmith" for word in ("--trust", name)]
    plan = ["plan", str(run_folder / "config.yaml"), "--gpus", str(processes), "--gpu", gpu_word(device), "--json"]
    return [sys.executable, "-m", "worldsmith", *trusted, *plan]


def gpu_word(device: str) -> str:
    """What `worldsmith plan` calls the GPU; of a machine without, its memory."""
    if device.startswith("cuda"):
        return word_of_device(device)
    import psutil

    return f"{psutil.virtual_memory().total / GIB:.1f}GiB"
