"""Studies of the toy family in processes that are forks of this one, which has imported everything."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna.storages
import torch._dynamo  # noqa: F401
import toy_family  # noqa: F401 (a recipe)

import worldsmith.tools.tune.page
import worldsmith.tools.tune.tune
import worldsmith.training.start_run  # noqa: F401
from worldsmith.cli.main import main
from worldsmith.distributed.process_signals import signal_at_parents_end
from worldsmith.tools.tune import trial_run
from worldsmith.training.trainer import Trainer

optuna.storages.RDBStorage("sqlite://")  # imports much more


class Forked:
    """What `subprocess.Popen` is for a command that a fork of this process does."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], output: int, errors: int) -> None:
        parent = os.getpid()
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            signal_at_parents_end(signal.SIGTERM, parent)
            os.dup2(output, 1)
            os.dup2(errors, 2)
            os.environ.update(environment)
            leave_with(words)

    def poll(self) -> int | None:
        if self.code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def leave_with(words: Sequence[str]) -> None:
    """Does a `worldsmith` command and ends this process as it would."""
    code = 1
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    try:
        sys.argv = ["worldsmith", *words]
        code = main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def tune(words: Sequence[str], said: Path, *, deadly: tuple[int, int] | None = None, stop: bool = False) -> int:
    """The exit code of `worldsmith tune`, whose words go to the file `said`.

    `deadly`: in this step of the run of this trial SIGKILL ends both, as when the machine is lost; with `stop` it is a
    SIGTERM to the command alone.
    """
    with said.open("wb") as file:
        child = fork_tune(words, file.fileno(), deadly, stop=stop)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_tune(words: Sequence[str], output: int, deadly: tuple[int, int] | None, *, stop: bool) -> int:
    child = os.fork()
    if child:
        return child
    os.dup2(output, 1)
    os.dup2(output, 2)
    command = os.getpid()

    def start(program: Sequence[str], environment: Mapping[str, str], output: int, errors: int) -> Forked:
        return Forked(program[3:], environment, output, errors)

    def step(trainer: Trainer, batches: object) -> object:
        if deadly == (int(trainer.run_folder.name), trainer.iteration + 1):
            os.kill(command, signal.SIGTERM if stop else signal.SIGKILL)
            if stop:
                signal.pause()  # until the command hands the signal on
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return training_step(trainer, batches)  # type: ignore[arg-type]

    training_step = Trainer.training_step
    Trainer.training_step = step  # type: ignore[assignment,method-assign]
    trial_run.start_process = start  # type: ignore[assignment]
    leave_with(["tune", *words])
    return 0
