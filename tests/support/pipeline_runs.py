"""Tiny runs of the families whose network is a class of diffusers, for tests that all families share."""

from __future__ import annotations

import importlib
from pathlib import Path

from worldsmith.models.ema import PowerEMA
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer

FAMILIES = {
    "cogvideox": ("tiny_cogvideox", "cogvideox_5b_tiny"),
    "flux": ("tiny_flux", "flux_tiny"),
    "ltx_video": ("tiny_ltx", "ltx_video_tiny"),
    "wan": ("tiny_wan", "wan21_t2v_tiny"),
    "wan22": ("tiny_wan", "wan22_ti2v_tiny"),
}
"""Family -> the module that makes its parts and its data, and a recipe."""


def make_world(family: str, folder: Path) -> Path:
    found: Path = importlib.import_module(FAMILIES[family][0]).make_world(folder)
    return found


def pipeline_config(
    family: str, world: Path, *, steps: int = 8, save_iter: int = 4, workers: int = 0, layers: int = 1
) -> Trainer.Config:
    """A run over `make_world(family, world)` that logs every step. `layers`: it has as many as its recipe."""
    module, recipe = FAMILIES[family]
    config: Trainer.Config = importlib.import_module(module).tiny_config(world, recipe, steps=steps)
    config.model.config.ema = PowerEMA.Config(rate=0.2)
    config.scheduler = LambdaCosine.Config(cycle_lengths=[steps], warm_up_steps=[2])
    config.trainer.callbacks["grad_clip"] = GradClip.Config(clip_norm=1.0)
    config.checkpoint.save_iter, config.dataloader_train.num_workers = save_iter, workers
    return config
