"""`RunPage` and `RunPlan`: write `report.html` and `plan.json` in other processes during the run."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.class_tags import trusted_packages
from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.distributed.gpus import GIB, word_of_device
from worldsmith.monitor.run_record import DISTRIBUTED_VARIABLES
from worldsmith.training.callbacks.base import Callback, TrainingRun, describe_end

if TYPE_CHECKING:
    from worldsmith.training.step import StepResult

logger = logging.getLogger(__name__)

PAUSE_PER_COST = 100
"""Min pause between two rebuilds in seconds per second of CPU time of a rebuild: rebuilds use at most 1 % of a CPU."""


class RunPage(Callback):
    """Rebuilds `report.html` in the run folder: at the start, at intervals in a separate process, and at the end.

    Only rank 0 builds the report, and no training step waits for it. The first error is logged, and the run continues.
    """

    class Config(Callback.Config):
        enabled: bool = True
        """Whether the HTML report is written; `worldsmith report RUN` writes it at any time."""
        every_seconds: Count = 30
        """Min seconds between two rebuilds of the report; longer if a rebuild takes more than 1 % of the interval."""

    config: Config
    child: subprocess.Popen[bytes] | None = None
    has_failed = False
    due = 0.0

    def on_run_start(self, trainer: TrainingRun) -> None:
        if self.writes_report(trainer):
            self._write(trainer, {"state": "starting"})

    def start_lines(self, trainer: TrainingRun) -> Iterator[str]:
        if self.writes_report(trainer):
            yield f"report       {(trainer.run_folder / 'report.html').resolve()}"

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if self.child is not None:
            self._collect_rebuild(os.WNOHANG)
        elif self.writes_report(trainer) and time.monotonic() >= self.due:
            self._rebuild(trainer.run_folder)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if not self.writes_report(trainer):
            return
        if self.child is not None:
            self._collect_rebuild(0)
        self._write(trainer, describe_end(trainer))

    def writes_report(self, trainer: TrainingRun) -> bool:
        return self.config.enabled and trainer.world.is_main

    def _write(self, trainer: TrainingRun, known: Mapping[str, Any]) -> None:
        """Builds the report in this process, before the first or after the last step.

        `known`: facts such as "state" that override those in `status.json`. An error is only logged.
        """
        from worldsmith.monitor.page.run_page import write_page

        start = time.process_time()
        try:
            write_page(trainer.run_folder, known={"step": trainer.iteration, **known})
        except Exception as error:  # whatever it is: the run is worth more
            self._fail(f"{type(error).__name__}: {error}")
        self._schedule_rebuild(time.process_time() - start)

    def _rebuild(self, folder: Path) -> None:
        words = [sys.executable, "-m", "worldsmith.monitor.page", str(folder)]
        nothing = subprocess.DEVNULL
        try:
            self.child = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing)
        except OSError as error:
            self._fail(str(error))
            self._schedule_rebuild(0.0)

    def _collect_rebuild(self, options: int) -> None:
        """Collects the exit code of the process that rebuilds the report, if that has ended; sets the time of the next.

        `options`: options of `os.wait4`; `os.WNOHANG` does not wait.
        """
        assert self.child is not None
        try:
            pid, status, used = os.wait4(self.child.pid, options)
        except ChildProcessError:  # another part of the process has seen it end
            self.child.returncode, self.child = 0, None
            return
        if not pid:
            return
        self.child.returncode = code = os.waitstatus_to_exitcode(status)
        self.child = None
        if code:
            self._fail(f"the process that builds the report ended with exit code {code}")
        self._schedule_rebuild(used.ru_utime + used.ru_stime)

    def _schedule_rebuild(self, cpu_seconds: float) -> None:
        """Sets the time of the next rebuild. `cpu_seconds`: CPU seconds of the last rebuild."""
        self.due = time.monotonic() + max(self.config.every_seconds, PAUSE_PER_COST * cpu_seconds)

    def _fail(self, why: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            logger.warning("the HTML report cannot be rebuilt, the run continues without it: %s", why)


FILE = "plan.json"
LOWEST = 19
"""Lowest priority of a process."""


class RunPlan(Callback):
    """Plans the run in a separate process: writes `plan.json`, which the report compares with measurements.

    Rank 0 starts a separate process with the lowest priority and without a GPU, which simulates a step without
    allocating tensors. No training step waits for that process, and it ends with the run. An error is logged, and the
    run continues.
    """

    class Config(Callback.Config):
        enabled: bool = True
        """Whether `plan.json` is written; `worldsmith plan RUN --json > RUN/plan.json` writes it at any time."""
        least_parameters: NotNegative = 100_000_000
        """Min number of parameters for a plan: smaller networks fit anyway, and starting the planner takes longer than
        their steps."""

    config: Config
    child: subprocess.Popen[bytes] | None = None

    def on_train_start(self, trainer: TrainingRun) -> None:
        if not (self.config.enabled and trainer.world.is_main):
            return
        if sum(parameter.numel() for parameter in trainer.model.network.parameters()) < self.config.least_parameters:
            return
        words = plan_command(trainer.run_folder, trainer.world.size, trainer.world.device)
        environment = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED_VARIABLES}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        try:
            with (self.folder / FILE).open("wb") as out, (self.folder / "said.txt").open("wb") as errors:
                self.child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment
                )
        except OSError as error:
            self._fail(str(error))
            return
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.child.pid, LOWEST)

    def on_training_step_end(self, trainer: TrainingRun, step: StepResult) -> None:
        if self.child is not None and self.child.poll() is not None:
            self._move_plan(trainer.run_folder, self.child.returncode)

    def on_train_end(self, trainer: TrainingRun) -> None:
        if not (self.config.enabled and trainer.world.is_main):
            return
        if self.child is not None:
            if self.child.poll() is None:
                self.child.terminate()
                self.child.wait()
                self.child = None
                logger.info(
                    "the run ends before the background estimate of its memory and time is complete; to estimate them: "
                    "worldsmith plan %s",
                    trainer.run_folder,
                )
            else:
                self._move_plan(trainer.run_folder, self.child.returncode)
        if (trainer.run_folder / FILE).exists():
            self._log_comparison(trainer.run_folder)

    def _move_plan(self, folder: Path, code: int) -> None:
        """Moves the `plan.json` that the planning process wrote to the run folder `folder`, and logs a summary of it.

        If the exit code `code` of that process is not 0, its last output line is logged instead.
        """
        self.child = None
        from worldsmith.monitor.page.plan_check import format_plan

        try:
            if code:
                lines = (self.folder / "said.txt").read_text(encoding="utf-8", errors="replace").split("\n")
                self._fail(next((line for line in reversed(lines) if line.strip()), f"exit code {code}"))
                return
            line = format_plan(json.loads((self.folder / FILE).read_text(encoding="utf-8")))
            os.replace(self.folder / FILE, folder / FILE)
        except (OSError, ValueError) as error:
            self._fail(f"{FILE}: {error}")
            return
        logger.info("plan         %s", line)

    def _log_comparison(self, folder: Path) -> None:
        """Logs measured values of the run in `folder` next to those of its plan.json; an error is only logged."""
        from worldsmith.monitor.page.plan_check import format_checks, plan_checks
        from worldsmith.monitor.page.run_files import read_run

        try:
            line = format_checks(plan_checks(read_run(folder)))
        except Exception as error:  # whatever it is: the run is worth more
            self._fail(f"{type(error).__name__}: {error}")
            return
        if line:
            logger.info("plan         %s", line)

    def _fail(self, why: str) -> None:
        logger.warning("the run could not be planned and continues without a plan: %s", why)


def plan_command(run_folder: Path, processes: int, device: str) -> list[str]:
    """Returns the `worldsmith plan --json` command, as a list of arguments, for the config of the run in `run_folder`.

    The plan is for `processes` GPUs of the same model as `device`, such as "cuda:0".
    """
    trusted = [word for name in trusted_packages() if name != "worldsmith" for word in ("--trust", name)]
    plan = ["plan", str(run_folder / "config.yaml"), "--gpus", str(processes), "--gpu", plan_gpu_name(device), "--json"]
    return [sys.executable, "-m", "worldsmith", *trusted, *plan]


def plan_gpu_name(device: str) -> str:
    """Returns the value of `worldsmith plan --gpu` for `device`: a GPU name or memory size; for a CPU, the RAM size."""
    if device.startswith("cuda"):
        return word_of_device(device)
    import psutil

    return f"{psutil.virtual_memory().total / GIB:.1f}GiB"
