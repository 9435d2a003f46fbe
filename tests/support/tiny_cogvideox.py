"""The parts of a tiny CogVideoX pipeline with random weights, and a run that trains its transformer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny_runs
import torch

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.families.cogvideox.architecture import NetworkConfig, tiny
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.trainer import Trainer


def make_world(folder: Path, *, clips: int = 6) -> Path:
    """Clips of 9 frames (a third of them) and of 5, and in `pipeline/` a VAE, a text encoder and its tokenizer."""
    tiny_runs.make_clips(folder / "data", clips)
    make_parts(folder / "pipeline")
    return folder


def make_parts(folder: Path) -> None:
    from diffusers import AutoencoderKLCogVideoX
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2, sample_height=64,
        sample_width=64, scaling_factor=0.7,
    ).save_pretrained(folder / "vae")  # fmt: skip
    settings = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    T5EncoderModel(settings).save_pretrained(folder / "text_encoder")
    make_tokenizer(folder / "tokenizer")


def network_of(**fields: Any) -> NetworkConfig:
    """A network for these parts."""
    return replace(tiny(), **{"in_channels": 4, "out_channels": 4, "text_embed_dim": 32, **fields})


def make_tokenizer(folder: Path) -> None:
    """T5's tokenizer with the letters as its pieces."""
    from transformers import T5Tokenizer

    pieces = ["<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz0123456789"]
    tokenizer = T5Tokenizer(vocab=[(piece, 0.0) for piece in pieces], extra_ids=0)
    tokenizer.save_pretrained(folder)


def tiny_config(world: Path, recipe: str = "cogvideox_2b_tiny", *, steps: int = 4) -> Trainer.Config:
    """A run of a shipped recipe over `make_world(world)` that logs every step; clips of 9 frames and of one."""
    os.environ |= {"COGVIDEOX_PATH": str(world / "pipeline"), "DATASET_PATH": str(world / "data")}
    config = cast(Trainer.Config, get_recipe(recipe))
    model = config.model.config
    model.tokenizer.vae_path = model.text_encoder.path = str(world / "pipeline")
    channels = 4 * model.network.in_channels // model.network.out_channels
    model.network = replace(model.network, in_channels=channels, out_channels=4, text_embed_dim=32)
    config.trainer.max_iter, config.trainer.logging_iter, config.trainer.cpu_threads = steps, 1, 1
    config.trainer.callbacks = {"metrics": Metrics.Config(tensorboard=False)}
    config.checkpoint.save_iter = steps
    config.dataloader_train.latent_cache = str(world / "latents")
    dataset = config.dataloader_train.dataset
    if not config.model.config.network.use_learned_positional_embeddings:
        dataset.num_video_frames, dataset.min_frames, dataset.temporal_interval_mode = -1, 5, "max_30fps"
    dataset.caption_keys = ["caption"]
    return resolve(config)
