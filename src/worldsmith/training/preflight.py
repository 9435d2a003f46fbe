"""What is refused or pointed out before anything is built."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.config.errors import UserError
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.memory import free_memory
from worldsmith.distributed.world import World, local_size
from worldsmith.models.weights.table import table_of
from worldsmith.monitor.short_text import format_bytes
from worldsmith.training.state_bytes import StateBytes, checkpoint_bytes, state_bytes

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from worldsmith.models.model import Model
    from worldsmith.training.optimizer import AdamW
    from worldsmith.training.run_config import RunConfig


def schedule_remarks(config: RunConfig) -> list[str]:
    """What a reader of the config might not expect of the learning rate, beside what loading the config says."""
    from worldsmith.training.scheduler import TRIAL_STEPS, multiplier

    schedule, steps = config.scheduler, config.trainer.max_iter
    remarks = []
    if steps == 1 and multiplier(schedule, 0) == 0:
        remarks.append("scheduler: the only step has learning rate 0 (f_start is 0): nothing is trained")
    warm_up = schedule.warm_up_steps[0]
    if (
        TRIAL_STEPS < steps <= warm_up < schedule.cycle_lengths[0]
    ):  # a warm-up above its cycle is remarked when the config is read
        remarks.append(f"scheduler: the run of {steps} steps ends within the warm-up of {warm_up} steps")
    return [*remarks, *rate_remarks(config)]


def rate_remarks(config: RunConfig) -> Iterator[str]:
    """Where the learning rate, or the adapters' scale, is far from what is usual for trained weights of the family."""
    model, rate = config.model.config, config.optimizer.lr
    if model.lora_enabled and 2 * model.lora_alpha < model.lora_rank:
        yield (
            f"adapters have the scale lora_alpha / lora_rank = {model.lora_alpha}/{model.lora_rank}: they learn little "
            "unless the learning rate is high; 1/2 to 2 is usual"
        )
    least, most = model.usual_rates.get(model.lora_enabled, (0.0, math.inf))
    if not least <= rate <= most and config.initial_weights() is not None:
        kind = "with adapters" if model.lora_enabled else "without adapters"
        yield f"optimizer.lr = {rate:g}; {least:g} to {most:g} is usual for '{model.family}' {kind}"


def checkpoint_size(config: RunConfig, model: Model, processes: int) -> int:
    """About what one checkpoint takes on disk. What is trained must have been chosen."""
    return checkpoint_bytes(table_of(model), config, plan_degrees(model.config.parallelism, processes)).files


def kept_checkpoints(config: RunConfig) -> int:
    """The most checkpoints of the run that are on the disk at once, the one that is being written included."""
    saves = -(-config.trainer.max_iter // config.checkpoint.save_iter)
    keep, every, best = config.checkpoint.keep_latest_k, config.checkpoint.keep_every, config.checkpoint.keep_best
    if best is not None:
        saves += config.trainer.max_iter // config.trainer.validation_iter
    if keep is None:
        return saves
    return min(saves, keep + 1 + (best is not None) + (config.trainer.max_iter // every if every else 0))


def build_optimizer(config: RunConfig, network: nn.Module) -> Optimizer:
    """Freezes what the run does not train."""
    settings = copy.deepcopy(config.optimizer)
    settings.fused = False  # there is no fused kernel for a network without memory
    adamw: AdamW = settings.build(network=network)
    optimizer: Optimizer = adamw.optimizer
    return optimizer


def describe_states(states: StateBytes) -> str:
    """What a process holds, for people."""
    names = {"average": "EMA weights"}
    sizes = ", ".join(f"{names.get(name, name)} {format_bytes(count)}" for name, count in states.parts.items())
    return f"{format_bytes(states.total)} on each process ({sizes})"


def lack_of_memory(states: StateBytes, world: World, processes: int) -> str | None:
    """Why so many processes of this machine cannot have it, in words; None when they can. A GPU has one of them."""
    on_gpu = world.device.startswith("cuda")
    free, sharing = free_memory(world.device), 1 if on_gpu else processes
    if states.total * sharing <= free:
        return None
    where = f"the GPU {world.device}" if on_gpu else "this machine"
    times = f", which has {sharing} of them" if sharing > 1 else ""
    return (
        f"it needs {describe_states(states)}, before activations, and {format_bytes(free)} are free on {where}{times}. "
        "Give it more processes or a larger machine, or train less: adapters (model.config.lora_enabled = true), fewer "
        "weights (optimizer.keys_to_select), a smaller model"
    )


def require_memory(config: RunConfig, world: World) -> None:
    """Raises UserError, on all ranks, when what a process is about to allocate is more than what is free.

    Before anything has memory: a machine that runs out of it ends processes without a word.
    """
    model: Model = config.model.config.build(device="meta")
    build_optimizer(config, model.network)
    states = state_bytes(table_of(model), config, plan_degrees(config.model.config.parallelism, world.size))
    lacks = world.gather(lack_of_memory(states, world, local_size()))
    lack = next((lack for lack in lacks if lack is not None), None)
    if lack is not None:
        raise UserError(f"the run does not fit into memory: {lack}")


def check_space(config: RunConfig, model: Model, processes: int, folder: Path) -> list[str]:
    """Remarks on whether the run's checkpoints fit on the disk of `folder`. Raises UserError when not even one does."""
    needed, kept = checkpoint_size(config, model, processes), kept_checkpoints(config)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"a checkpoint of this run takes {format_bytes(needed)}, and the disk of {folder} has {format_bytes(free)} "
            'free. Make room, choose another output root, or save less with checkpoint.save_weights = "trained"'
        )
    if kept * needed > free:
        fewer = "a smaller checkpoint.keep_latest_k" if config.checkpoint.keep_latest_k else "checkpoint.keep_latest_k"
        return [
            f"the run's {kept} checkpoints of {format_bytes(needed)} do not all fit: {format_bytes(free)} are free on "
            f"the disk of {folder}; set {fewer}, or a larger checkpoint.save_iter"
        ]
    return []
