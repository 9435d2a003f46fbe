"""What is refused or pointed out before anything is built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.models.cosmos3.generator import Cosmos3Generator

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer


def check_tree(config: Trainer.Config) -> None:
    """Raises ValueError for settings that exist but do not work, with the value that does."""
    recompute = generator_config(config).activation_checkpointing
    refusals = (
        (config.job.task != "vfm", f"job.task = {config.job.task!r}: only video generators are trained here", '"vfm"'),
        (
            config.job.wandb_mode != "disabled",
            f"job.wandb_mode = {config.job.wandb_mode!r}: nothing is sent to Weights & Biases; the figures are in "
            "metrics.jsonl and in TensorBoard files",
            '"disabled"',
        ),
        (
            recompute.mode == "selective",
            "model.config.activation_checkpointing.mode = 'selective': single operations cannot be chosen",
            '"none" or "full"',
        ),
    )
    for refused, what, remedy in refusals:
        if refused:
            raise ValueError(f"{what}; use {remedy}")


def generator_config(config: Trainer.Config) -> Cosmos3Generator.Config:
    """The model's config, which is that of a video generator. Raises ValueError for another component."""
    found = config.model.config
    if not isinstance(found, Cosmos3Generator.Config):
        raise ValueError(f"model.config is a {type(found).__qualname__}; expected Cosmos3Generator.Config")
    return found


def schedule_remarks(config: Trainer.Config) -> list[str]:
    """What a reader of the config might not expect of the learning rate, beside what loading the config says."""
    from worldsmith.training.scheduler import multiplier

    schedule, steps = config.scheduler, config.trainer.max_iter
    remarks = []
    if multiplier(schedule, 0) == 0:
        remarks.append("scheduler: the first step has learning rate 0 (f_start is 0)")
    warm_up = schedule.warm_up_steps[0]
    if warm_up >= steps:
        remarks.append(f"scheduler: the run of {steps} steps ends within the warm-up of {warm_up} steps")
    return remarks


def require_writable(folder: Path) -> None:
    """Raises UserError when the run folder cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe_{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"the run folder {folder} cannot be written: {error.strerror or error}") from None
