"""Runs training processes that kill themselves. Imports everything once; every job is a forked process of its own.

    python fork_server.py   < one JSON object per line: {"world", "run", "workers", "steps", "save_iter", "kill"}

`kill` is null or [step, phase]: SIGKILL in that 1-based step at `start` (its data is read), `backward` (gradients are
there), `end` (updated and logged), or `save:n` (the n-th file operation of the save after it). Prints the exit code
of each job, negative for a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import tiny_runs
import torch
import torch.distributed.checkpoint

# What a run imports on its way, imported once for all forks.
from diffusers import AutoencoderKLWan  # noqa: F401
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: F401

import worldsmith.data.sample_maker
import worldsmith.models.cosmos3.network
import worldsmith.objectives.flow_matching
import worldsmith.training.run_state
import worldsmith.training.step  # noqa: F401
from worldsmith.checkpoint import checkpointer
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.step import Step
from worldsmith.training.trainer import Trainer


class Killer(Callback):
    """Sends SIGKILL to its own process at one point of one step."""

    class Config(Callback.Config):
        step: int
        """1-based step."""
        phase: str
        """start, backward, end, or save:n."""

    config: Config

    def on_training_step_start(self, trainer: Trainer, step: Step) -> None:
        self.strike(step, "start")

    def on_before_optimizer_step(self, trainer: Trainer, step: Step) -> None:
        self.strike(step, "backward")

    def on_training_step_end(self, trainer: Trainer, step: Step) -> None:
        self.strike(step, "end")
        if step.index + 1 == self.config.step and self.config.phase.startswith("save:"):
            kill_at_file_operation(int(self.config.phase.removeprefix("save:")))

    def strike(self, step: Step, phase: str) -> None:
        if (step.index + 1, phase) == (self.config.step, self.config.phase):
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_file_operation(number: int) -> None:
    """From now on counts file operations; the process dies before the `number`-th."""
    seen = 0

    def mortal(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for module, name in ((checkpointer, "save_part"), (checkpointer, "summary"), (os, "replace"), (os, "fsync")):
        setattr(module, name, mortal(getattr(module, name)))


def run_job(job: dict[str, Any]) -> None:
    config = tiny_runs.tiny_config(
        Path(job["world"]), steps=job["steps"], save_iter=job["save_iter"], workers=job["workers"]
    )
    trainer = Trainer(config, run_folder=Path(job["run"]))
    if job["kill"] is not None:
        step, phase = job["kill"]
        # Beside the tree and not in it, so that the tree of the run that goes on is the same.
        trainer.callbacks["killer"] = Killer(Killer.Config(step=step, phase=phase), folder=trainer.run_folder)
    trainer.train()


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_job(json.loads(line))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
