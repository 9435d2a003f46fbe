"""The parts of a tiny LTX-Video pipeline with random weights, and runs that train its transformer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny_runs
import torch
from tiny_cogvideox import make_tokenizer

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.trainer import Trainer

VAE: dict[str, Any] = {
    "latent_channels": 128,
    "block_out_channels": (8, 8, 8, 8),
    "decoder_block_out_channels": (8, 8, 8, 8),
    "layers_per_block": (1, 1, 1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1, 1, 1),
    "scaling_factor": 0.9,
}


def make_world(folder: Path, *, clips: int = 6) -> Path:
    """Clips of 9 frames (a third of them) and of 5, and a pipeline without a trained transformer."""
    tiny_runs.make_clips(folder / "data", clips)
    make_parts(folder / "pipeline")
    return folder


def make_parts(folder: Path, **settings: Any) -> None:
    """VAE, text encoder and tokenizer."""
    from diffusers import AutoencoderKLLTXVideo
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    vae = AutoencoderKLLTXVideo(**VAE, **settings)
    vae.latents_mean.copy_(torch.linspace(-0.3, 0.3, 128))
    vae.latents_std.copy_(torch.linspace(0.5, 1.5, 128))
    vae.save_pretrained(folder / "vae")
    sizes = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    T5EncoderModel(sizes).save_pretrained(folder / "text_encoder")
    make_tokenizer(folder / "tokenizer")


def tiny_config(world: Path, recipe: str = "ltx_video_tiny", *, steps: int = 4) -> Trainer.Config:
    """A run of the tiny recipe over `make_world(world)` that logs every step; clips of 9 frames and of one."""
    os.environ |= {"LTX_PATH": str(world / "pipeline"), "DATASET_PATH": str(world / "data")}
    config = cast(Trainer.Config, get_recipe(recipe))
    config.trainer.max_iter, config.trainer.logging_iter, config.trainer.cpu_threads = steps, 1, 1
    config.trainer.callbacks = {"metrics": Metrics.Config(tensorboard=False)}
    config.checkpoint.save_iter = steps
    config.dataloader_train.latent_cache = str(world / "latents")
    dataset = config.dataloader_train.dataset
    dataset.num_video_frames, dataset.min_frames, dataset.temporal_interval_mode = -1, 5, "max_30fps"
    dataset.caption_keys = ["caption"]
    return resolve(config)
