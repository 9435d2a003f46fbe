"""A LoRA run from a LoRA file on several ranks: `launch` runs `lora_ranks.py WORLD FILE RUN`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny_wan
from launch import fork_ranks

from worldsmith.distributed.world import stop_world
from worldsmith.training.trainer import Trainer


def config_of(world: Path, file: Path) -> Any:
    config: Any = tiny_wan.tiny_config(world, steps=1)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha = True, 4, 2
    model.lora_target_modules = "attn1.to_q,attn1.to_k,attn1.to_v,attn1.to_out.0"
    config.checkpoint.load_path, config.checkpoint.init = str(world / "base"), "pretrained"
    config.checkpoint.load_adapter = str(file)
    return config


def start() -> None:
    """Saves the run before its first step, and leaves the process group."""
    world, file, run = map(Path, sys.argv[1:])
    Trainer(config_of(world, file), run_folder=run).save()
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(start))
