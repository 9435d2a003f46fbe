"""The demo's run as a benchmark needs it: moving-shapes clips, the shipped VAE and tokenizer, nothing logged."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from worldsmith.config import get_recipe
from worldsmith.demo.moving_shapes import MovingShapes
from worldsmith.families.cosmos3.network.architecture import tiny
from worldsmith.training.trainer import Trainer

VOCAB_SIZE = 512


def demo_config(data: Path, *, clips: int = 16, layers: int = 6, size: int = 64) -> Trainer.Config:
    """All `clips` in every step, float32; the network has hidden size 256. The clips are made in `data`."""
    MovingShapes(clips=clips, val_clips=0, size=size).make(data)
    config = cast(Trainer.Config, get_recipe("moving_shapes"))
    config.job.project, config.job.group = "benchmarks", "demo"
    model = config.model.config
    model.network = tiny(vocab_size=VOCAB_SIZE)
    model.network.num_hidden_layers = layers
    config.dataloader_train.dataset.path = str(data)
    config.dataloader_train.dataset.resolution = str(size)
    config.dataloader_train.max_samples_per_batch = clips
    config.dataloader_train.num_workers = 0
    config.dataloader_train.latent_cache = str(data.parent / "latents")
    config.trainer.callbacks = {}
    config.checkpoint.keep_latest_k = 1
    return config
