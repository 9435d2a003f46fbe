"""Tiny runs that encode first, for each family that learns from clips; a script for ranks: `WORLDS OUT FAMILY.MODE…`.

A run records its gradients, and which encoders are in memory while its network is.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import imported_once  # noqa: F401
import tiny_runs
import tiny_wan
import torch
from launch import fork_ranks
from pipeline_runs import FAMILIES as PIPELINES

from worldsmith.data.latent_cache import EncodedCache
from worldsmith.distributed.world import stop_world
from worldsmith.models.model import Model
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer

FAMILIES = {
    "cosmos3": ("tiny_runs", ""),
    **PIPELINES,
    "wan_i2v": ("tiny_wan", tiny_wan.I2V),
    "wan_clip_i2v": ("tiny_wan", tiny_wan.CLIP_I2V),
    "cogvideox_i2v": ("tiny_cogvideox", "cogvideox_5b_i2v_tiny"),
}
"""Family -> the module that makes its world, and a recipe."""
LIBRARIES = ("diffusers.models.autoencoders.", "transformers.models.")
"""Modules with the classes of VAEs and text encoders."""


def make_world(family: str, folder: Path) -> Path:
    found: Path = importlib.import_module(FAMILIES[family][0]).make_world(folder)
    return found


def config_of(family: str, world: Path, cache: Path, mode: str, *, steps: int = 4) -> Any:
    """Four steps, which save after the second; `steps`: the run ends there."""
    module, recipe = FAMILIES[family]
    make = importlib.import_module(module).tiny_config
    config: Any = make(world, recipe, steps=4) if recipe else make(world, steps=4)
    config.scheduler = LambdaCosine.Config(cycle_lengths=[4], warm_up_steps=[1])
    config.trainer.max_iter, config.trainer.encode_first, config.checkpoint.save_iter = steps, mode, 2
    config.dataloader_train.latent_cache = str(cache)
    return config


def living_modules() -> list[torch.nn.Module]:
    """The modules of VAEs and text encoders that are in memory; the image encoder is not one, every step needs it."""
    return [
        each
        for each in gc.get_objects()
        if issubclass(type(each), torch.nn.Module)
        and type(each).__module__.startswith(LIBRARIES)
        and not type(each).__name__.startswith(("CLIPVision", "CLIPEncoder", "CLIPAttention", "CLIPMLP"))
    ]


def train(config: Any, folder: Path) -> dict[str, Any]:
    """Trains; returns losses, gradients of each step, encoders next to the network by moment, and entries written."""
    gradients: list[list[torch.Tensor]] = []
    written: list[str] = []
    beside: dict[str, set[str]] = {}
    gc.collect()
    others = weakref.WeakSet(living_modules())  # of earlier tests
    materialize, put = Model.materialize, EncodedCache.put

    def living_encoders() -> set[str]:
        return {type(each).__name__ for each in living_modules() if each not in others}

    def counted(cache: EncodedCache, key: str, encoded: torch.Tensor) -> None:
        written.append(key)
        put(cache, key, encoded)

    def watched(model: Model, device: Any) -> None:
        if torch.device(device).type != "meta":
            beside["before the network"] = living_encoders()
        materialize(model, device)

    def before_step(*_: Any) -> None:
        if not gradients:
            beside["in the first step"] = living_encoders()
        gradients.append([whole(p.grad) for p in trainer.state.parameters if p.grad is not None])

    with patch.object(Model, "materialize", watched), patch.object(EncodedCache, "put", counted):
        trainer = Trainer(config, run_folder=folder)
    trainer.state.optimizer.register_step_pre_hook(before_step)
    trainer.train()
    beside["at the end"] = living_encoders()
    found = {"gradients": gradients, "beside": beside, "counts": dict(trainer.task.counts()), "written": len(written)}
    return {"losses": tiny_runs.read_losses(folder), **found}


def whole(gradient: Any) -> torch.Tensor:
    return (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).clone()


def files_of(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.rglob("*.safetensors")}


def run_rank(worlds: Path, out: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    for case in cases:
        family, mode = case.split(".")
        found = train(config_of(family, worlds / family, out / case / "cache", mode), out / case / "run")
        torch.save(found, out / case / f"{os.environ['RANK']}.pt")
    stop_world()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(run_rank, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
