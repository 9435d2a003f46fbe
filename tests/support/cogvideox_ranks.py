"""A step of a tiny CogVideoX on gloo ranks: `launch` runs `cogvideox_ranks.py WORLD_FOLDER OUT_FOLDER RECIPE…`.

Each rank takes its share of four clips; loss and whole gradients are written to OUT_FOLDER/<recipe>.<ranks>.pt.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import diffusers
import torch
import transformers
from launch import fork_ranks
from tiny_cogvideox import tiny_config
from torch.distributed.fsdp import fully_shard  # noqa: F401 (imported once for all forks)
from torch.distributed.tensor import DTensor

from worldsmith.distributed.world import World, stop_world
from worldsmith.families.cogvideox.task import CogVideoXTask
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.parallel import build_model, join_world
from worldsmith.training.step import StepInputs, forward_backward

LOADED = diffusers.CogVideoXTransformer3DModel, diffusers.AutoencoderKLCogVideoX, transformers.T5EncoderModel
SEED, DRAWS, SAMPLES = 7, 3, 4


def make_task(config: Any, world: World) -> CogVideoXTask:
    model = build_model(config.model.config, world)
    model.init_weights(SEED)
    return CogVideoXTask(model=model, objective=config.objective, data=config.dataloader_train, world=world)


def clips_of(config: Any) -> list[Any]:
    """Clips of one shape, the second of them without its caption."""
    config.dataloader_train.latent_cache, config.dataloader_train.dataset.cfg_dropout_rate = "", 0.0
    found = [s for s in make_task(config, World()).loader().first_samples() if s.num_frames == 9][:SAMPLES]
    found[1].caption, found[1].text_ids = "", [1]
    return found


def run_step(config: Any, world: World) -> dict[str, Any]:
    clips = clips_of(config)
    task = make_task(config, world)
    step = forward_backward(StepInputs(0, [clips[world.data_rank :: world.data_size]]), task, seed=DRAWS)
    gradients = {name: whole(p.grad) for name, p in native_parameters(task.model.network).items()}
    sharded = any(isinstance(p, DTensor) for p in task.model.network.parameters())
    return {"loss": step.loss, "gradients": gradients, "sharded": sharded}


def whole(tensor: Any) -> Any:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def run_rank(folder: Path, out: Path, recipes: list[str]) -> None:
    torch.set_num_threads(1)
    for recipe in recipes:
        config = tiny_config(folder, recipe)
        world = join_world(config.model.config)
        result = run_step(config, world)
        if world.is_main:
            torch.save(result, out / f"{recipe}.{world.size}.pt")
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
