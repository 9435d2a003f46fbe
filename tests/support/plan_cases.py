"""Small runs of every family in many arrangements, to be simulated and carried out: what both need, and for how long.

A case is named FAMILY or FAMILY.ARRANGEMENT[.ARRANGEMENT…], see `FAMILIES` and `ARRANGEMENTS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny_ltx
import tiny_wan
from tiny_reasoner import conversation, qwen3_vl, write_folder
from tiny_reasoner import model_config as reasoner_model

import worldsmith.families.recipes  # noqa: F401
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.sections import ActivationCheckpointingConfig, JobConfig
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.distributed.world import World
from worldsmith.models.converters.float8 import Float8
from worldsmith.models.converters.frozen_base import FrozenBase
from worldsmith.models.ema import PowerEMA
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.next_token import NextToken
from worldsmith.tasks.registry import task_of
from worldsmith.training.callbacks.grad_clip import GradClip
from worldsmith.training.optimizer import AdamW
from worldsmith.training.run_config import LoopConfig
from worldsmith.training.trainer import Trainer

VISIBLE = [[], [("image", (1, 12, 16))], [("video", (4, 8, 12))]]
"""What samples of a reasoner show, in turn."""


def cosmos3() -> Trainer.Config:
    config = recipe("vision_sft_nano_tiny")
    network = config.model.config.network
    network.num_hidden_layers, network.hidden_size, network.intermediate_size = 3, 128, 256
    network.head_dim, network.mrope_section = 32, [6, 5, 5]
    config.dataloader_train.max_sequence_length = 1024
    config.dataloader_train.dataset.min_frames, config.objective.shift = 17, 3
    config.dataloader_train.dataset.resolution = "64"
    return config


def vision_language() -> Trainer.Config:
    """Needs REASONER_FOLDER."""
    return Trainer.Config(
        job=JobConfig(task="vlm", project="tests", group="tiny", name="run"),
        model=ModelSpec(name="vision_language", config=reasoner_model(Path(os.environ["REASONER_FOLDER"]))),
        objective=NextToken.Config(),
        optimizer=AdamW.Config(lr=3e-3),
        trainer=LoopConfig(callbacks={"grad_clip": GradClip.Config(clip_norm=1.0)}),
        dataloader_train=ChatLoader.Config(max_sequence_length=1024),
    )


def pipeline(name: str, size: str, frames: int, samples: int) -> Callable[[], Trainer.Config]:
    """A tiny twin on larger clips."""

    def make() -> Trainer.Config:
        config = recipe(name)
        data = config.dataloader_train
        data.dataset.resolution, data.max_samples_per_batch = size, samples
        data.dataset.num_video_frames = data.dataset.min_frames = frames
        return config

    return make


FAMILIES: dict[str, Callable[[], Trainer.Config]] = {
    "cosmos3": cosmos3,
    "vision_language": vision_language,
    "cogvideox": pipeline("cogvideox_5b_tiny", "160x96", 17, 4),
    "cogvideox_2b": pipeline("cogvideox_2b_tiny", "64", 9, 4),
    "wan": pipeline("wan21_t2v_tiny", "160x96", 17, 4),
    "ltx_video": pipeline("ltx_video_tiny", "160x96", 17, 4),
    "flux": pipeline("flux_tiny", "192x128", 1, 8),
}


def recomputation(mode: str) -> Callable[[Trainer.Config], None]:
    def change(config: Trainer.Config) -> None:
        config.model.config.activation_checkpointing = ActivationCheckpointingConfig(mode=mode)

    return change


def activations(config: Trainer.Config) -> None:
    config.model.config.activation_checkpointing.offload = True


def parallelism(**settings: Any) -> Callable[[Trainer.Config], None]:
    def change(config: Trainer.Config) -> None:
        config.model.config.parallelism = replace(config.model.config.parallelism, **settings)

    return change


def adapters(config: Trainer.Config) -> None:
    model = config.model.config
    model.lora_enabled, model.lora_rank = True, 8
    if config.optimizer.keys_to_select:
        config.optimizer.keys_to_select = ["lora_"]
    if not model.lora_target_modules:
        model.lora_target_modules = "q_proj,v_proj"


def dropout(config: Trainer.Config) -> None:
    config.model.config.lora_dropout = 0.1


def rounded(config: Trainer.Config) -> None:
    adapters(config)
    config.checkpoint.save_weights = "trained"
    config.model.config.converters = [FrozenBase.Config(bits=4)]


def float8(config: Trainer.Config) -> None:
    bfloat16(config)
    config.model.config.converters = [Float8.Config()]


def eight_bits(config: Trainer.Config) -> None:
    config.optimizer.name = "AdamW8bit"


def bfloat16(config: Trainer.Config) -> None:
    config.model.config.precision = "bfloat16"


def float16(config: Trainer.Config) -> None:
    config.model.config.precision = "float16"


def average(config: Trainer.Config) -> None:
    config.model.config.ema = PowerEMA.Config(enabled=True, rate=0.1)


def twice(config: Trainer.Config) -> None:
    config.trainer.grad_accum_iter = 2


ARRANGEMENTS: dict[str, Callable[[Trainer.Config], None]] = {
    "full": recomputation("full"),
    "selective": recomputation("selective"),
    "lora": adapters,
    "dropout": dropout,
    "bits4": rounded,
    "bf16": bfloat16,
    "fp16": float16,
    "float8": float8,
    "adamw8bit": eight_bits,
    "average": average,
    "twice": twice,
    "every_pack": parallelism(reduce_every_pack=True),
    "cp2": parallelism(context_parallel_shard_degree=2),
    "offloaded": parallelism(offload="frozen"),
    "all": parallelism(offload="all"),
    "half": parallelism(offload_fraction=0.5),
    "inputs_offloaded": activations,
    "hsdp": parallelism(data_parallel_replicate_degree=2),
    "fill50": lambda config: None,
    "fill20": lambda config: None,
}


def recipe(name: str) -> Trainer.Config:
    """A shipped recipe of a family, whose data and weights are not there."""
    os.environ.setdefault("DATASET_PATH", "none")
    for variable in ("WAN_VAE_PATH", "TOKENIZER_PATH", "BASE_CHECKPOINT_PATH", "COGVIDEOX_PATH"):
        os.environ.setdefault(variable, "none")
    return cast(Trainer.Config, get_recipe(name))


def case_config(case: str) -> Trainer.Config:
    """One batch a step, no average and no recomputation, unless the case has it otherwise."""
    family, *arrangements = case.split(".")
    config = FAMILIES[family]()
    config.trainer.grad_accum_iter = 1
    config.model.config.ema = PowerEMA.Config(enabled=False)
    config.model.config.activation_checkpointing = ActivationCheckpointingConfig(mode="none")
    for name in arrangements:
        ARRANGEMENTS[name](config)
    return resolve(config)


def case_batches(case: str, config: Trainer.Config) -> list[Any]:
    fill = next((int(name[4:]) / 100 for name in case.split(".") if name.startswith("fill")), 1.0)
    if case.startswith("vision_language"):
        batch: Any = [conversation(place, VISIBLE[place % 3], text=40) for place in range(round(10 * fill))]
    else:
        task = task_of(config.model.name)(
            model=config.model.config.build(device="meta"),
            objective=config.objective,
            data=config.dataloader_train,
            world=World(),
        )
        batch = list(task.dummy_data.make_batch(fill=fill).samples)
    return [batch] * config.trainer.grad_accum_iter


def write_parts(folder: Path) -> Path:
    """The files that the cases need; `use_parts` comes next."""
    write_folder(folder / "reasoner", qwen3_vl())
    tiny_wan.make_parts(folder / "wan")
    tiny_ltx.make_parts(folder / "ltx")
    return folder


def use_parts(folder: Path) -> None:
    os.environ |= {
        "REASONER_FOLDER": str(folder / "reasoner"),
        "WAN_PATH": str(folder / "wan"),
        "LTX_PATH": str(folder / "ltx"),
    }
