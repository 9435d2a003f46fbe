"""Runs of the toy family whose layers have 4 or 8 bits under adapters; as a script, of two steps and two more on ranks.

python qlora_runs.py WORLD FOLDER OFFLOAD     (see launch.py)
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import toy_runs
from launch import fork_ranks

from worldsmith.models.converters.frozen_base import FrozenBase
from worldsmith.training.trainer import Trainer


def lora_config(world: Path, *, steps: int = 4) -> Trainer.Config:
    """A run of the toy family that trains adapters on both of its layers."""
    config = toy_runs.toy_config(world, steps=steps, save_iter=2)
    config.scheduler.cycle_lengths = [8]
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha, model.lora_target_modules = True, 2, 4, "0,1"
    model.lora_dropout = 0.25
    model.ema.trainable_only, config.checkpoint.save_weights = True, "trained"
    return config


def qlora_config(world: Path, *, steps: int = 4, **options: Any) -> Trainer.Config:
    """The same over rounded weights."""
    config = lora_config(world, steps=steps)
    config.model.config.converters = [FrozenBase.Config(**options)]
    return config


def main(world: Path, folder: Path, offload: str) -> None:
    import torch

    from worldsmith.distributed.world import stop_world

    torch.set_num_threads(1)
    for steps in (2, 4):  # the second one resumes
        config = qlora_config(world, steps=steps)
        config.trainer.grad_accum_iter = 1
        config.model.config.parallelism.offload = offload
        config.model.config.lora_dropout = 0.0  # whose masks differ from rank to rank
        Trainer(config, run_folder=folder, resume_changed=True).train()
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
