"""Runs training processes that kill themselves. Imports everything once; every job is a forked process of its own.

    python fork_server.py toy|tiny|reasoner|cogvideox|flux   < one JSON object per line: {"world", "run", "steps", …}

Runs are those of toy_runs.py, tiny_runs.py, reasoner_runs.py or pipeline_runs.py. `checkpoint` are settings of that
section, `model` of `model.config`, `optimizer` of that section, `float8` the recipe of that converter; `workers`,
`ranks`, `accumulate`, `samples` (per pack), `cycle` (of the schedule), `layers`, `resume_changed` and `validate` (every
so many steps) may be given. `kill` is null or [step, phase]: SIGKILL of the last rank in that 1-based step at `start`
(its data is read), `backward` (gradients are there), `end` (updated and logged), or `save:n` (the n-th file operation
of the save after it, in whatever process). Prints the exit code of each job, negative for a signal.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
import toy_runs
from imported_once import import_for_reasoners, import_for_videos
from launch import fork_ranks, meeting_point
from mortal import Mortal

from worldsmith.models.converters import Float8
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.step import StepInputs, StepResult
from worldsmith.training.trainer import Trainer

FAMILY = sys.argv[1]
PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2): processes whose parent has ended become children of this one."""


class Killer(Callback):
    """Sends SIGKILL to its own process at one point of one step."""

    class Config(Callback.Config):
        step: int
        """1-based step."""
        phase: str
        """start, backward, end, or save:n."""

    config: Config
    mortal: Mortal

    def on_training_step_start(self, trainer: Trainer, inputs: StepInputs) -> None:
        self.strike(inputs, "start")

    def on_before_optimizer_step(self, trainer: Trainer, step: StepResult) -> None:
        self.strike(step.inputs, "backward")

    def on_training_step_end(self, trainer: Trainer, step: StepResult) -> None:
        self.strike(step.inputs, "end")
        if step.inputs.index + 1 == self.config.step and self.config.phase.startswith("save:"):
            self.mortal.arm(int(self.config.phase.removeprefix("save:")))

    def strike(self, inputs: StepInputs, phase: str) -> None:
        if (inputs.index + 1, phase) == (self.config.step, self.config.phase):
            os.kill(os.getpid(), signal.SIGKILL)


class Positions(Callback):
    """Writes down which samples this rank trains on, a list for each step."""

    def on_train_start(self, trainer: Trainer) -> None:
        self.steps: dict[int, list[int]] = {}

    def on_training_step_end(self, trainer: Trainer, step: StepResult) -> None:
        self.steps[trainer.iteration] = [sample.position for pack in step.inputs.batches for sample in pack]
        path = self.folder / f"positions_{trainer.world.size}_{trainer.world.rank}.json"
        path.write_text(json.dumps(self.steps))


def make_config(world: Path, **settings: Any) -> Trainer.Config:
    if FAMILY == "toy":
        return toy_runs.toy_config(world, **settings)
    if FAMILY == "reasoner":
        import reasoner_runs

        return reasoner_runs.reasoner_config(world, **settings)
    if FAMILY != "tiny":
        import pipeline_runs

        return pipeline_runs.pipeline_config(FAMILY, world, **settings)
    import tiny_runs

    return tiny_runs.tiny_config(world, **settings)


def run_job(job: dict[str, Any]) -> None:
    config = make_config(Path(job["world"]), steps=job["steps"], workers=job["workers"], layers=job.get("layers", 1))
    config.checkpoint = dataclasses.replace(config.checkpoint, **job["checkpoint"])
    config.model.config = dataclasses.replace(config.model.config, **job.get("model", {}))
    if job.get("float8"):
        config.model.config.converters = [Float8.Config(recipe=job["float8"])]
    config.optimizer = dataclasses.replace(config.optimizer, **job.get("optimizer", {}))
    if job.get("accumulate"):
        config.trainer.grad_accum_iter = job["accumulate"]
    if job.get("samples"):
        config.dataloader_train.max_sequence_length = None  # type: ignore[attr-defined]
        config.dataloader_train.max_samples_per_batch = job["samples"]
    config.scheduler.cycle_lengths = [job.get("cycle", job["steps"])]
    if job.get("validate"):
        toy_runs.validated(config, every=job["validate"])
    mortal = Mortal()
    trainer = Trainer(config, run_folder=Path(job["run"]), resume_changed=job.get("resume_changed", False))
    # Beside the tree and not in it, so that the tree of the run that goes on is the same.
    if job["kill"] is not None and trainer.world.rank == job.get("ranks", 1) - 1:
        step, phase = job["kill"]
        killer = Killer(Killer.Config(step=step, phase=phase), folder=trainer.run_folder)
        killer.mortal = mortal
        trainer.callbacks["killer"] = killer
    if job.get("samples"):
        trainer.callbacks["positions"] = Positions(Positions.Config(), folder=trainer.run_folder)
    trainer.train()


def main() -> None:
    torch.set_num_threads(1)
    if FAMILY == "reasoner":
        import_for_reasoners()
    elif FAMILY != "toy":
        import_for_videos()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for line in sys.stdin:
        job = json.loads(line)
        os.environ.update(meeting_point(job.get("ranks", 1)))
        code = fork_ranks(partial(run_job, job))
        wait_for_orphans()
        print(code, flush=True)


def wait_for_orphans() -> None:
    """What a killed run has started is killed with it, but ends the system call that it is in: a checkpoint of its
    background save may appear a moment later."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
