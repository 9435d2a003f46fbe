"""The parts of tiny Wan pipelines with random weights, and runs that train their transformers."""

from __future__ import annotations

import os
from dataclasses import asdict
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

STATISTICS = {"latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [0.5, 1.5, 0.8, 1.0]}
T2V, TI2V, I2V = "wan21_t2v_tiny", "wan22_ti2v_tiny", "wan22_i2v_a14b_tiny"
CLIP_I2V = "wan21_i2v_tiny"


def make_world(folder: Path, *, clips: int = 6) -> Path:
    """Clips of 9 frames (a third of them) and of 5, and for each recipe its pipeline, without a trained transformer."""
    tiny_runs.make_clips(folder / "data", clips)
    make_parts(folder / T2V)
    make_parts(folder / TI2V, large_cells=True)
    make_parts(folder / I2V)
    make_parts(folder / CLIP_I2V)
    make_image_encoder(folder / CLIP_I2V)
    return folder


def make_parts(folder: Path, *, large_cells: bool = False) -> None:
    """VAE, text encoder and tokenizer; `large_cells`: the VAE is one of Wan 2.2, with 16 pixels to a latent cell."""
    from diffusers import AutoencoderKLWan
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, **STATISTICS}
    if large_cells:
        sizes |= {"is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2, "decoder_base_dim": 8}
        sizes |= {"scale_factor_spatial": 16}
    AutoencoderKLWan(**sizes).save_pretrained(folder / "vae")
    settings = UMT5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    UMT5EncoderModel(settings).save_pretrained(folder / "text_encoder")
    make_tokenizer(folder / "tokenizer")


def make_image_encoder(folder: Path) -> None:
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(2)
    settings = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=32, patch_size=16
    )
    CLIPVisionModel(settings).save_pretrained(folder / "image_encoder")
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    CLIPImageProcessorPil(**sizes).save_pretrained(folder / "image_processor")


def make_expert(folder: Path, config: Any, where: str, seed: int) -> Any:
    """A transformer with the run's sizes and random weights, in a pipeline's folder."""
    from diffusers import WanTransformer3DModel

    torch.manual_seed(seed)
    network = WanTransformer3DModel(**asdict(config.model.config.network))
    network.save_pretrained(folder / where)
    return network


def tiny_config(world: Path, recipe: str = T2V, *, steps: int = 4) -> Trainer.Config:
    """A run of a shipped recipe over `make_world(world)` that logs every step; clips of 9 frames and of one."""
    os.environ |= {"WAN_PATH": str(world / recipe), "DATASET_PATH": str(world / "data")}
    config = cast(Trainer.Config, get_recipe(recipe))
    config.trainer.max_iter, config.trainer.logging_iter, config.trainer.cpu_threads = steps, 1, 1
    config.trainer.callbacks = {"metrics": Metrics.Config(tensorboard=False)}
    config.checkpoint.save_iter = steps
    config.dataloader_train.latent_cache = str(world / "latents")
    dataset = config.dataloader_train.dataset
    dataset.num_video_frames, dataset.min_frames, dataset.temporal_interval_mode = -1, 5, "max_30fps"
    dataset.caption_keys = ["caption"]
    return resolve(config)
