"""A whole run of the smallest size: real MP4 clips, a tokenizer, a random VAE, a network of a few thousand weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from toy_runs import read_checkpoint as read_checkpoint
from toy_runs import read_losses as read_losses
from toy_runs import read_validations as read_validations

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config.sections import JobConfig
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.text_tokenizer import TextTokenizer
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_vae.wan import WanVAE
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.sampling.write_media import write_mp4
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer

VOCAB_SIZE = 320


def make_world(folder: Path, *, clips: int = 6) -> Path:
    """Clips with captions, a tokenizer and a VAE in `folder`."""
    make_clips(folder / "data", clips)
    make_tokenizer(folder / "tokenizer")
    make_vae(folder / "vae")
    return folder


def make_clips(folder: Path, count: int) -> None:
    """H.264 clips of a moving gradient, of two lengths, and their data set file."""
    lines = []
    for index in range(count):
        frames = 9 if index % 3 == 0 else 5
        write_mp4(folder / f"videos/{index}.mp4", moving_gradient(index, frames, 64, 64), 8)
        window = {"start_frame": 0, "end_frame": frames - 1, "temporal_interval": 1, "caption": f"clip {index} moves"}
        record = {"uuid": f"clip{index}", "width": 64, "height": 64, "nb_frames": frames, "framerate": 8.0}
        lines.append({**record, "vision_path": f"videos/{index}.mp4", "t2w_windows": [window]})
    (folder / "video_dataset_file.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_long_clips(folder: Path) -> None:
    """Two clips of 61 frames, which is the shortest window that the recipes take, with structured captions."""
    lines = []
    for index in range(2):
        write_mp4(folder / f"videos/{index}.mp4", moving_gradient(index, 61, 96, 160), 24)
        caption = {"subjects": [{"description": f"gradient {index}"}], "duration": "2s"}
        window = {"start_frame": 0, "end_frame": 60, "temporal_interval": 1, "caption_json": caption}
        record = {"uuid": f"clip{index}", "width": 160, "height": 96, "nb_frames": 61, "framerate": 24.0}
        lines.append({**record, "vision_path": f"videos/{index}.mp4", "t2w_windows": [window]})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "video_dataset_file.jsonl").write_text(text)


def moving_gradient(index: int, frames: int, height: int, width: int) -> torch.Tensor:
    time, y, x = np.ogrid[0:frames, 0:height, 0:width]
    channels = (x * 3 + 9 * time) % 256, (y * 2 + 40 * index) % 256, (x + y) % 256
    return torch.from_numpy(np.stack(np.broadcast_arrays(*channels)).astype(np.uint8))


def make_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges, with the chat markers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    wrapped.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    wrapped.save_pretrained(folder)


def make_vae(folder: Path) -> None:
    """A random `AutoencoderKLWan` with the latent geometry of Wan 2.2: 48 channels, 16 × 16 × 4."""
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=4, decoder_base_dim=4, z_dim=48, dim_mult=[1, 1, 2, 2], num_res_blocks=1, attn_scales=[],
        temperal_downsample=[False, True, True], is_residual=True, in_channels=12, out_channels=12, patch_size=2,
        scale_factor_spatial=16, scale_factor_temporal=4, latents_mean=[0.0] * 48, latents_std=[1.0] * 48,
    )  # fmt: skip
    vae.save_pretrained(folder)


def tiny_config(
    world: Path, *, steps: int = 8, save_iter: int = 4, workers: int = 0, cache: bool = True, layers: int = 1
) -> Trainer.Config:
    """A run over `make_world(world)` that logs every step."""
    network = NetworkConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, mrope_section=[2, 1, 1],
    )  # fmt: skip
    dataset = VideoDataset.Config(path=str(world / "data"), resolution="64", min_frames=5, caption_keys=["caption"])
    return Trainer.Config(
        job=JobConfig(project="tests", group="tiny", name="run"),
        model=ModelSpec(
            name="cosmos3",
            config=Cosmos3Generator.Config(
                precision="float32",
                network=network,
                ema=PowerEMA.Config(rate=0.2),
                tokenizer=WanVAE.Config(vae_path=str(world / "vae"), precision="float32"),
                text_tokenizer=TextTokenizer.Config(path=str(world / "tokenizer")),
            ),
        ),
        objective=RectifiedFlow.Config(),
        optimizer=AdamW.Config(lr=3e-3, weight_decay=0.01),
        scheduler=LambdaCosine.Config(cycle_lengths=[steps], warm_up_steps=[2]),
        trainer=LoopConfig(
            max_iter=steps,
            logging_iter=1,
            grad_accum_iter=2,
            cpu_threads=1,
            callbacks={"grad_clip": GradClip.Config(clip_norm=1.0), "metrics": Metrics.Config(tensorboard=False)},
        ),
        checkpoint=Checkpointer.Config(init="scratch", save_iter=save_iter),
        dataloader_train=VideoLoader.Config(
            dataset=dataset,
            max_sequence_length=500,
            num_workers=workers,
            latent_cache=str(world / "latents") if cache else "",
        ),
    )
