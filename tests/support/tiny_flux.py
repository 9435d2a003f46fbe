"""The parts of a tiny FLUX pipeline with random weights, and a run that trains its transformer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny_cogvideox
import tiny_runs
import torch
from PIL import Image

from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.tree.references import resolve
from worldsmith.families.flux.model import FluxGenerator
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.trainer import Trainer

ENDINGS = ("png", "jpg", "webp")


def make_world(folder: Path, *, pictures: int = 6) -> Path:
    """Images of 64x64 pixels, a clip, and in `pipeline/` a VAE, two text encoders and their tokenizers."""
    make_pictures(folder / "data", pictures)
    make_parts(folder / "pipeline")
    return folder


def make_pictures(folder: Path, count: int) -> None:
    """Image files of several kinds and one clip of five frames, with their data set file."""
    tiny_runs.make_clips(folder, 2)
    lines = (folder / "video_dataset_file.jsonl").read_text().splitlines()[1:]
    for index in range(count):
        name = f"images/{index}.{ENDINGS[index % len(ENDINGS)]}"
        pixels = tiny_runs.moving_gradient(index, 1, 64, 64)[:, 0].permute(1, 2, 0).numpy()
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
        window = {"start_frame": 0, "end_frame": 0, "temporal_interval": 1, "caption": f"picture {index}"}
        lines.append(json.dumps({"uuid": f"picture{index}", "vision_path": name, "t2w_windows": [window]}))
    (folder / "video_dataset_file.jsonl").write_text("".join(f"{line}\n" for line in lines))


def make_parts(folder: Path) -> None:
    from diffusers import AutoencoderKL
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    torch.manual_seed(0)
    AutoencoderKL(
        block_out_channels=(4, 4, 4, 4), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=4, layers_per_block=1, norm_num_groups=2,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1, scaling_factor=0.4,
    ).save_pretrained(folder / "vae")  # fmt: skip
    clip = CLIPTextConfig(
        vocab_size=len(letters()), hidden_size=64, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=77, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    CLIPTextModel(clip).save_pretrained(folder / "text_encoder")
    make_clip_tokenizer(folder / "tokenizer")
    t5 = T5Config(vocab_size=64, d_model=64, d_kv=8, d_ff=37, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu")
    T5EncoderModel(t5).save_pretrained(folder / "text_encoder_2")
    tiny_cogvideox.make_tokenizer(folder / "tokenizer_2")


def letters() -> list[str]:
    signs = "abcdefghijklmnopqrstuvwxyz0123456789"
    return ["<|startoftext|>", "<|endoftext|>", *signs, *(f"{sign}</w>" for sign in signs)]


def make_clip_tokenizer(folder: Path) -> None:
    """CLIP's tokenizer with the letters as its pieces."""
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer(vocab={sign: place for place, sign in enumerate(letters())}, merges=[])
    tokenizer.model_max_length = 77
    tokenizer.save_pretrained(folder)


def tiny_config(world: Path, recipe: str = "flux_tiny", *, steps: int = 4) -> Trainer.Config:
    """A run of a shipped recipe over `make_world(world)` that logs every step."""
    os.environ |= {"DATASET_PATH": str(world / "data")}
    config = cast(Trainer.Config, get_recipe(recipe))
    model = cast(FluxGenerator.Config, config.model.config)
    model.tokenizer.vae_path = model.text_encoder.path = str(world / "pipeline")
    config.trainer.max_iter, config.trainer.logging_iter, config.trainer.cpu_threads = steps, 1, 1
    config.trainer.callbacks = {"metrics": Metrics.Config(tensorboard=False)}
    config.checkpoint.save_iter = steps
    config.dataloader_train.latent_cache = str(world / "latents")
    config.dataloader_train.dataset.caption_keys = ["caption"]
    return resolve(config)
