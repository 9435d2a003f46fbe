"""Run of a trial in its own process: its validation metrics, its outcome and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from worldsmith.config.declare.class_tags import trusted_packages
from worldsmith.config.recipes.packages import registered
from worldsmith.distributed.process_signals import signal_at_parents_end
from worldsmith.files.json_file import read_json_object
from worldsmith.monitor.page.series import MetricsReader, numbers
from worldsmith.training.run_folder import ROOT_VARIABLES

METRICS = "metrics.jsonl"
REASON = re.compile(r"(?:worldsmith: )?error: (.*)|((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)")
"""Matches a log line that states why a run failed."""
LONGEST = 500
"""Max number of characters of the text that states why a trial failed."""


class ValidationReader(MetricsReader):
    """Reads one validation metric from the metrics.jsonl of a run, also while the run is active.

    Args:
        path: The file metrics.jsonl.
        metric: Name of the metric.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self.metric = metric
        super().__init__(path)

    def begin(self, inode: int | None) -> None:
        """Clears `values` and `names`, before the metrics file is read from its start.

        `inode` is the inode number of the file, by which a replaced file is recognized; None if no file exists yet.
        """
        super().begin(inode)
        self.values: list[float | None] = []
        """Value of the metric at each validation after the first step; None if it is not finite."""
        self.names: set[str] = set()
        """Names of all validation metrics in the file (val/… and val_ema/…)."""

    def add_line(self, line: bytes) -> None:
        """Adds the metric in one line of metrics.jsonl to `values`, if it was validated after the first step.

        The names of all validation metrics in the line are added to `names`.
        """
        if b'"val/loss"' not in line:
            return
        record = json.loads(line)
        found = dict(numbers(record))
        self.names |= {name for name in found if name.startswith(("val/", "val_ema/"))}
        if self.metric in found and record["step"] > 0:
            self.values.append(found[self.metric])


class TrialRun:
    """Training process of one trial and, if the study uses `worldsmith evaluate`, the evaluation process after it."""

    def __init__(
        self, folder: Path, words: Sequence[str], metric: str, *, slot: int = 0, after: Sequence[str] = ()
    ) -> None:
        """Prepares the run of a trial; starts no process.

        Args:
            folder: The run folder.
            words: Arguments of the `worldsmith` command that trains.
            metric: Name of the validation metric; values before the first step are ignored.
            slot: Index among the parallel trials, which determines the devices.
            after: Arguments of a second command that evaluates the run; empty: none.
        """
        self.folder, self.words, self.metric, self.slot, self.after = folder, words, metric, slot, after
        self.log, self.measured = folder.with_suffix(".log"), folder.with_suffix(".measured.json")
        self.process: subprocess.Popen[bytes] | None = None
        self.seconds = 0.0
        self.asked = False
        self.validations = ValidationReader(folder / METRICS, metric)
        self._since = 0.0

    def start(self, environment: Mapping[str, str]) -> None:
        """Starts the training process with these environment variables; its output is appended to the log of the trial.

        The training saves and stops if the calling process ends.
        """
        self._since = time.monotonic()
        with self.log.open("ab") as log:
            self.process = start_process(program(self.words), environment, log.fileno(), log.fileno())

    def start_next(self, environment: Mapping[str, str]) -> bool:
        """Starts the evaluation command, if the trial has one; its standard output replaces the file `measured`.

        Returns whether the command was started; a second call starts nothing and returns False.
        """
        if not self.after:
            return False
        self._since, command, self.after = time.monotonic() - self.seconds, self.after, ()
        with self.log.open("ab") as log, self.measured.open("wb") as measured:
            self.process = start_process(program(command), environment, measured.fileno(), log.fileno())
        return True

    def facts(self) -> dict[str, float | None]:
        """Returns the metrics that the evaluation command printed, by name. Raises UserError if they cannot be read."""
        return dict(numbers(read_json_object(self.measured)))

    def code(self) -> int | None:
        """Returns the exit code of the last started process, negative for a signal; None while it is running."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None and self._since:
            self.seconds, self._since = time.monotonic() - self._since, 0.0
        return code

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to the running process once, so that the run saves and exits."""
        if not self.asked and self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.asked = True

    def kill(self) -> None:
        """Kills the last started process if it is running, and waits for its end."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def values(self) -> list[float | None]:
        """Returns the metric of the trial after each validation so far; None for a value that is not finite."""
        self.validations.read()
        return self.validations.values

    def reason(self) -> str:
        """Returns why the last started process failed: its signal, or its exit code with the error in the log."""
        code = self.code()
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}{', perhaps because memory ran out' if -code == signal.SIGKILL else ''}"
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return f"exit code {code}: {find_reason(lines)}"


def find_reason(lines: Sequence[str]) -> str:
    """Returns the error message in the last line of a log that names an error, with up to 5 lines after it.

    If no line names an error, returns the last line that is not empty. The text has at most `LONGEST` characters.
    """
    for index in range(len(lines) - 1, -1, -1):
        if match := REASON.match(lines[index].strip()):
            rest = [line.strip() for line in lines[index + 1 : index + 6] if line.strip()]
            return " ".join([match[1] or match[2], *rest])[:LONGEST]
    return next((line.strip()[:LONGEST] for line in reversed(lines) if line.strip()), "its log is empty")


def program(words: Sequence[str]) -> list[str]:
    """Returns the command line of a new process for a `worldsmith` command, given by its arguments `words`.

    The new process imports and trusts (--import, --trust) the same packages as the calling process.
    """
    modules = dict.fromkeys(found.module for found in registered().values())
    packages = [
        *(word for module in modules if not is_ours(module) for word in ("--import", module)),
        *(word for package in trusted_packages() if not is_ours(package) for word in ("--trust", package)),
    ]
    return [sys.executable, "-m", "worldsmith", words[0], *packages, *words[1:]]


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "worldsmith"


def start_process(
    command: Sequence[str], environment: Mapping[str, str], output: int, errors: int
) -> subprocess.Popen[bytes]:
    """Starts a process in its own session, so that Ctrl-C reaches the calling process but not the new one.

    The new process receives SIGTERM when the calling process ends.

    Args:
        command: Command line.
        environment: Environment variables.
        output: File descriptor of standard output.
        errors: File descriptor of standard error.
    """
    parent = os.getpid()
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        preexec_fn=lambda: signal_at_parents_end(signal.SIGTERM, parent),
    )


def environment_of(slot: int, parallel: int, root: Path, devices: Sequence[str], processes: int = 1) -> dict[str, str]:
    """Returns the environment variables for the processes of a trial, based on those of the calling process.

    They set the root folder of the runs and, with several parallel trials, the GPUs or the number of CPU threads.

    Args:
        slot: Index of the slot among the parallel trials.
        parallel: Number of parallel trials.
        root: Root folder of the runs.
        devices: All GPU ids; empty without GPUs.
        processes: Number of processes per trial, with one device each.
    """
    found = {name: value for name, value in os.environ.items() if name not in ROOT_VARIABLES}
    found[ROOT_VARIABLES[0]] = str(root)
    if devices and parallel > 1:  # a run that is started without `worldsmith launch` uses one
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices[slot * processes : (slot + 1) * processes])
    elif parallel > 1 and "OMP_NUM_THREADS" not in found:
        found["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // (parallel * processes)))
    return found


def visible_devices() -> list[str]:
    """Returns the GPU ids that the calling process can use, as in CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(index) for index in range(count)]
