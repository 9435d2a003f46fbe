"""What is refused or pointed out before anything is built."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.sources.first_weights import FirstWeights, first_weights
from worldsmith.config.errors import UserError, wrong
from worldsmith.distributed.memory import free_memory
from worldsmith.distributed.world import World, local_size
from worldsmith.models.converters.converter import held_weights
from worldsmith.tasks.registry import task_of
from worldsmith.training.callbacks.metrics import Metrics
from worldsmith.training.gradients.loss_scale import LossScaler
from worldsmith.training.parallel import plan_degrees

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from worldsmith.config.tree.degrees import Degrees
    from worldsmith.training.optimizer import AdamW
    from worldsmith.training.trainer import Trainer

BYTES = 4
"""Per number: weights, average and moments are float32 in a checkpoint, whatever the network computes in."""


def check_tree(config: Trainer.Config) -> None:
    """Raises WrongValueError for settings that exist but do not work, with the value that does."""
    model = config.model.config
    if config.job.task != model.task:
        why = f"models of the family '{model.family}' are trained for another"
        raise wrong(config, "job.task", why=why, remedy=f'use "{model.task}"')
    writers = [found for found in config.trainer.callbacks.values() if isinstance(found, Metrics.Config)]
    if config.job.wandb_mode != "disabled" and not writers:
        why = "no callback of the run writes figures"
        raise wrong(config, "job.wandb_mode", why=why, remedy='add the callback metrics, or use "disabled"')
    if config.checkpoint.init != "scratch" and start_of(config) is None:
        raise wrong(
            config,
            *("checkpoint.load_path", "checkpoint.init"),
            why="there are no weights to start from",
            remedy='set checkpoint.load_path, or checkpoint.init = "scratch" to train from random weights',
        )
    for level in ("project", "group"):
        if not getattr(config.job, level):
            why = "it is a level of the run folder, <output root>/<project>/<group>/<name>"
            raise wrong(config, f"job.{level}", why=why, remedy="write a name")
    if config.trainer.run_validation and config.dataloader_val is None:
        raise wrong(
            config,
            *("trainer.run_validation", "dataloader_val"),
            why="there is no data to validate on",
            remedy="give dataloader_val a loader, or use run_validation = false",
        )
    if model.precision != "float16" and config.trainer.loss_scale != LossScaler.Config():
        raise wrong(
            config,
            *("trainer.loss_scale", "model.config.precision"),
            why="the loss has a scale in float16 alone",
            remedy='leave loss_scale as it is, or use precision = "float16"',
        )
    check_best(config)
    model.check_trained(config.optimizer.keys_to_select)
    task_of(model.family).check(config)
    for converter in model.converters:
        converter.check_run(config)
    for callback in config.trainer.callbacks.values():
        callback.check_run(config)


def check_best(config: Trainer.Config) -> None:
    """Raises WrongValueError for a best checkpoint, or an early stop, that nothing would be measured for."""
    metric, patience = config.checkpoint.keep_best, config.trainer.early_stop_patience
    if metric is not None and not config.trainer.run_validation:
        both = "checkpoint.keep_best", "trainer.run_validation"
        raise wrong(config, *both, why="nothing is validated", remedy="set run_validation = true, or keep_best = null")
    if metric is not None and metric.startswith("val_ema/") and not config.model.config.ema.enabled:
        both = "checkpoint.keep_best", "model.config.ema.enabled"
        raise wrong(config, *both, why="there are no averaged weights", remedy='use "val/loss"')
    if patience is not None and metric is None:
        both = "trainer.early_stop_patience", "checkpoint.keep_best"
        raise wrong(config, *both, why="nothing says what is better", remedy='set keep_best = "val/loss"')


def start_of(config: Trainer.Config) -> FirstWeights | None:
    """The weights that a new run starts from; None: random ones."""
    return first_weights(config.checkpoint.load_path, config.checkpoint.init, config.model.config)


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
    return [*remarks, *rate_remarks(config)]


def rate_remarks(config: Trainer.Config) -> Iterator[str]:
    """Where the learning rate, or the adapters' scale, is far from what is usual for trained weights of the family."""
    model, rate = config.model.config, config.optimizer.lr
    if model.lora_enabled and 2 * model.lora_alpha < model.lora_rank:
        yield (
            f"adapters have the scale lora_alpha / lora_rank = {model.lora_alpha}/{model.lora_rank}: they learn little "
            "unless the learning rate is high; 1/2 to 2 is usual"
        )
    least, most = model.usual_rates.get(model.lora_enabled, (0.0, math.inf))
    if not least <= rate <= most and start_of(config) is not None:
        kind = "with adapters" if model.lora_enabled else "without adapters"
        yield f"optimizer.lr = {rate:g}; {least:g} to {most:g} is usual for '{model.family}' {kind}"


def count_weights(network: nn.Module) -> tuple[int, int]:
    """Numbers in all parameters and in the trained ones; what is trained must have been chosen (requires_grad).

    `network` may be on the meta device or sharded.
    """
    parameters = list(network.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return sum(parameter.numel() for parameter in parameters), trained


def checkpoint_bytes(config: Trainer.Config, network: nn.Module) -> int:
    """About what one checkpoint takes: weights, average, and two moments of each trained weight."""
    total, trained = count_weights(network)
    ema, only_trained = config.model.config.ema, config.checkpoint.save_weights == "trained"
    weights = trained if only_trained else total
    average = (trained if only_trained or ema.trainable_only else total) if ema.enabled else 0
    return BYTES * (weights + average + 2 * trained)


def kept_checkpoints(config: Trainer.Config) -> int:
    """The most checkpoints of the run that are on the disk at once, the one that is being written included."""
    saves = -(-config.trainer.max_iter // config.checkpoint.save_iter)
    keep, every, best = config.checkpoint.keep_latest_k, config.checkpoint.keep_every, config.checkpoint.keep_best
    if best is not None:
        saves += config.trainer.max_iter // config.trainer.validation_iter
    if keep is None:
        return saves
    return min(saves, keep + 1 + (best is not None) + (config.trainer.max_iter // every if every else 0))


def build_optimizer(config: Trainer.Config, network: nn.Module) -> Optimizer:
    """Freezes what the run does not train."""
    settings = copy.deepcopy(config.optimizer)
    settings.fused = False  # there is no fused kernel for a network without memory
    adamw: AdamW = settings.build(network=network)
    optimizer: Optimizer = adamw.optimizer
    return optimizer


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that each process holds between two steps, and during accumulation, before activations."""

    parts: Mapping[str, int]

    @classmethod
    def of(cls, config: Trainer.Config, network: nn.Module, degrees: Degrees) -> Memory:
        """For a network, perhaps without memory, in which what is trained has been chosen."""
        model, shares = config.model.config, degrees.weights
        total, trained = count_weights(network)
        held = held_weights(network).values() if model.converters else ()
        held_numbers = sum(layer.weight.numel() for layer in held)
        frozen_bytes = 2 if model.parallelism.fsdp_master_dtype == "bfloat16" else 4
        trained_bytes = 4 if model.lora_enabled else frozen_bytes  # adapters stay float32
        waits = config.trainer.grad_accum_iter > 1 and not model.parallelism.reduce_every_pack
        parts = {
            "weights": (frozen_bytes * (total - held_numbers - trained) + trained_bytes * trained) // shares
            + sum(layer.held_bytes for layer in held),
            "gradients": BYTES * trained if waits else trained_bytes * trained // shares,
            "moments": 2 * trained_bytes * trained // shares,
        }
        if model.ema.enabled:
            parts["average"] = BYTES * (trained if model.ema.trainable_only else total) // shares
        return cls(parts)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size(count)}" for name, count in self.parts.items())
        return f"{size(sum(self.parts.values()))} on each process ({sizes})"

    def lack(self, world: World, processes: int) -> str | None:
        """Why so many processes of this machine cannot have it, in words; None when they can. A GPU has one of them."""
        on_gpu = world.device.startswith("cuda")
        free, sharing = free_memory(world.device), 1 if on_gpu else processes
        if sum(self.parts.values()) * sharing <= free:
            return None
        where = f"the GPU {world.device}" if on_gpu else "this machine"
        times = f", which has {sharing} of them" if sharing > 1 else ""
        return (
            f"it needs {self}, before activations, and {size(free)} are free on {where}{times}. Give it more processes "
            "or a larger machine, or train less: adapters (model.config.lora_enabled = true), fewer weights "
            "(optimizer.keys_to_select), a smaller model"
        )


def require_memory(config: Trainer.Config, world: World) -> None:
    """Raises UserError, on all ranks, when what a process is about to allocate is more than what is free.

    Before anything has memory: a machine that runs out of it ends processes without a word.
    """
    network = config.model.config.build(device="meta").network
    build_optimizer(config, network)
    memory = Memory.of(config, network, plan_degrees(config.model.config, world.size))
    lacks = world.gather(memory.lack(world, local_size()))
    lack = next((lack for lack in lacks if lack is not None), None)
    if lack is not None:
        raise UserError(f"the run does not fit into memory: {lack}")


def check_space(config: Trainer.Config, network: nn.Module, folder: Path) -> list[str]:
    """Remarks on whether the run's checkpoints fit on the disk of `folder`. Raises UserError when not even one does."""
    needed, free, kept = checkpoint_bytes(config, network), shutil.disk_usage(folder).free, kept_checkpoints(config)
    if needed > free:
        raise UserError(
            f"a checkpoint of this run takes {size(needed)}, and the disk of {folder} has {size(free)} free. "
            'Make room, choose another output root, or save less with checkpoint.save_weights = "trained"'
        )
    if kept * needed > free:
        fewer = "a smaller checkpoint.keep_latest_k" if config.checkpoint.keep_latest_k else "checkpoint.keep_latest_k"
        return [
            f"the run's {kept} checkpoints of {size(needed)} do not all fit: {size(free)} are free on the disk of "
            f"{folder}; set {fewer}, or a larger checkpoint.save_iter"
        ]
    return []


def size(count: int) -> str:
    """Bytes for people: 12.3 MiB, 4.56 GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
