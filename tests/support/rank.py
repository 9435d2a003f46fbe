"""Small runs on several ranks: `python rank.py WORLD FOLDER`. See test_two_ranks.py and launch.py."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
import toy_runs
from launch import fork_ranks

from worldsmith.distributed.world import stop_world
from worldsmith.training.callbacks.device_monitor import DeviceMonitor
from worldsmith.training.callbacks.norm_monitor import NormMonitor
from worldsmith.training.trainer import Trainer


def two_rank_config(world: Path, *, steps: int, accumulate: int) -> Trainer.Config:
    """Steps of four samples: two ranks with one pack of two, or one process with two packs."""
    config = toy_runs.toy_config(world, steps=steps, save_iter=10)
    config.trainer.grad_accum_iter = accumulate
    config.scheduler.cycle_lengths = [4]
    config.trainer.callbacks["norm_monitor"] = NormMonitor.Config(every=1, updates=True)
    config.trainer.callbacks["DeviceMonitor"] = DeviceMonitor.Config(every=1)
    return config


def main(world: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    Trainer(two_rank_config(world, steps=3, accumulate=1), run_folder=folder / "whole").train()
    for steps in (2, 3):  # the second one resumes
        Trainer(two_rank_config(world, steps=steps, accumulate=1), run_folder=folder / "resumed").train()
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]), Path(sys.argv[2]))))
