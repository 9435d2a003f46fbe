"""A whole run of a reasoner of the smallest size: MP4 clips, a picture, text alone, a tokenizer, random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from reasoners import model_config, write_model
from tiny_runs import moving_gradient
from transformers import AutoConfig

from worldsmith.assets import asset_path
from worldsmith.config.sections import JobConfig
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.next_token import NextToken
from worldsmith.sampling.write_media import write_mp4
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig
from worldsmith.training.scheduler import LambdaCosine
from worldsmith.training.trainer import Trainer


def make_world(folder: Path, *, samples: int = 6, write: Callable[[Path], object] | None = None) -> Path:
    """A model folder with random weights, and conversations about clips, a picture, and nothing."""
    (write or write_smallest)(folder / "model")
    data = folder / "data"
    data.mkdir()
    records = []
    for index in range(samples):
        name = f"chat{index}"
        if index % 3 == 2:
            media: dict[str, str] = {} if index % 2 else {"image": f"{name}.png"}
        else:
            media = {"video": f"{name}.mp4"}
        frames = moving_gradient(index, 5, 64, 64)
        if "video" in media:
            write_mp4(data / media["video"], frames, 8)
        elif media:
            Image.fromarray(frames[:, 0].permute(1, 2, 0).numpy()).save(data / media["image"])
        asked = "".join(f"<{kind}>\n" for kind in media) + "Is the clip possible?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": ("yes", "no")[index % 2]}]
        records.append({"id": name, **media, "conversations": turns})
    (data / "annotations.json").write_text(json.dumps(records))
    return folder


def write_smallest(folder: Path) -> None:
    """A Qwen3-VL of one layer each, with the shipped tokenizer and preprocessor settings."""
    source = asset_path("tiny_reasoner")
    config = AutoConfig.from_pretrained(source)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.num_hidden_layers, text.intermediate_size = 64, 1, 96
    text.num_attention_heads, text.num_key_value_heads = 2, 1
    vision.hidden_size, vision.depth, vision.intermediate_size, vision.num_heads = 32, 1, 48, 2
    vision.out_hidden_size, vision.deepstack_visual_indexes = 64, [0]
    write_model(folder, config)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        shutil.copy(source / name, folder)


def reasoner_config(
    world: Path, *, steps: int = 8, save_iter: int = 4, workers: int = 0, layers: int = 1
) -> Trainer.Config:
    """A run over `make_world(world)`, from its weights, that logs every step. `layers`: it has one of each."""
    return Trainer.Config(
        job=JobConfig(task="vlm", project="tests", group="tiny", name="run"),
        model=ModelSpec(name="vision_language", config=model_config(world / "model", ema=PowerEMA.Config(rate=0.2))),
        objective=NextToken.Config(),
        optimizer=AdamW.Config(lr=3e-3, weight_decay=0.01),
        scheduler=LambdaCosine.Config(cycle_lengths=[steps], warm_up_steps=[2]),
        trainer=LoopConfig(
            max_iter=steps,
            logging_iter=1,
            grad_accum_iter=2,
            cpu_threads=1,
            callbacks={"grad_clip": GradClip.Config(clip_norm=1.0), "metrics": Metrics.Config(tensorboard=False)},
        ),
        dataloader_train=ChatLoader.Config(
            dataset=LlavaDataset.Config(path=str(world / "data")),
            max_sequence_length=500,
            num_workers=workers,
        ),
    )
