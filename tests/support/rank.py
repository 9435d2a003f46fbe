"""Small runs on several ranks: `python rank.py WORLD FOLDER`. See test_two_ranks.py and launch.py."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import imported_once  # noqa: F401
import torch
import toy_runs
from launch import fork_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from worldsmith.distributed.world import stop_world
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import DeviceMonitor, NormMonitor
from worldsmith.training.trainer import Trainer

MEASURED = ("norm_monitor", "DeviceMonitor")
"""Callbacks that ask all ranks for something of their own."""


def two_rank_config(world: Path, *, steps: int, accumulate: int) -> Trainer.Config:
    """Steps of four samples: two ranks with one pack of two, or one process with two packs."""
    config = toy_runs.toy_config(world, steps=steps, save_iter=10)
    config.trainer.grad_accum_iter = accumulate
    config.scheduler.cycle_lengths = [4]
    config.trainer.callbacks["norm_monitor"] = NormMonitor.Config(every=1, updates=True)
    config.trainer.callbacks["DeviceMonitor"] = DeviceMonitor.Config(every=1)
    return config


def half_config(world: Path, *, accumulate: int, scale: float) -> Trainer.Config:
    """Six steps in float16, the first of which overflow."""
    config = two_rank_config(world, steps=6, accumulate=accumulate)
    config.model.config.precision, config.optimizer.decay_vectors = "float16", False
    config.trainer.loss_scale.init_scale = scale
    return config


def overflow_on_one_rank(world: Path, folder: Path) -> None:
    """Writes to FOLDER/overflow.txt what each rank is told of a gradient that is infinite on the last one alone."""
    trainer = Trainer(half_config(world, accumulate=1, scale=4.0), run_folder=folder / "overflow")
    for parameter in trainer.state.parameters:
        parameter.grad = torch.ones_like(parameter)
    if not trainer.world.is_main:
        trainer.state.parameters[0].grad.to_local().fill_(float("inf"))
    told = trainer.world.gather((trainer.state.scaler.unscale(), trainer.state.scaler.scale))
    if trainer.world.is_main:
        (folder / "overflow.txt").write_text(repr(told))


class CollectiveCounter(TorchDispatchMode):
    """Counts the collective calls of each step by name; a step ends with the next one's begin."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer
        self.steps: dict[int, Counter[str]] = defaultdict(Counter)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._overloadpacket.__name__.strip("_")
        if func.namespace in ("c10d", "_c10d_functional") and name != "wait_tensor":
            self.steps[self.trainer.iteration][name] += 1
        return func(*args, **(kwargs or {}))


def count_collectives(world: Path, folder: Path) -> None:
    """Writes to FOLDER/collectives.json what the ranks call in each of six steps, logged ones and one that is not."""
    config = two_rank_config(world, steps=6, accumulate=1)
    config.trainer.callbacks = {"grad_clip": GradClip.Config()} | {
        name: callback for name, callback in config.trainer.callbacks.items() if name not in MEASURED
    }
    trainer = Trainer(config, run_folder=folder / "counted")
    counter = CollectiveCounter(trainer)
    with counter:
        trainer.train()
    if trainer.world.is_main:
        (folder / "collectives.json").write_text(json.dumps(counter.steps))


def main(world: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    count_collectives(world, folder)
    Trainer(two_rank_config(world, steps=3, accumulate=1), run_folder=folder / "whole").train()
    for steps in (2, 3):  # the second one resumes
        Trainer(two_rank_config(world, steps=steps, accumulate=1), run_folder=folder / "resumed").train()
    Trainer(half_config(world, accumulate=1, scale=2.0**17), run_folder=folder / "half").train()
    overflow_on_one_rank(world, folder)
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]), Path(sys.argv[2]))))
