"""What of a run goes into a checkpoint, and how it comes back, bit for bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worldsmith.checkpoint.checkpointer import stored_shapes
from worldsmith.checkpoint.optimizer_state import empty_optimizer_state, optimizer_state, restore_optimizer_state
from worldsmith.checkpoint.rng_state import rng_state, set_rng_state
from worldsmith.checkpoint.warm_start import load_weights
from worldsmith.config.errors import UserError
from worldsmith.config.tree import to_yaml

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)


def save_run(trainer: Trainer) -> Path:
    """Writes a checkpoint of everything that the next step depends on."""
    parts = {
        "model": model_state(trainer),
        "optim": optimizer_state(trainer.network, trainer.optimizer),
        "scheduler": {"last_epoch": torch.tensor(trainer.scheduler.scheduler.last_epoch)},
        "trainer": {**counters(trainer), **prefixed_rng_state(trainer)},
    }
    return trainer.checkpointer.save(
        trainer.iteration,
        parts,
        dataloader=trainer.loader.state_dict(),
        texts={"config.yaml": to_yaml(trainer.config)},
    )


def restore_run(trainer: Trainer, checkpoint: Path) -> None:
    """Puts a checkpoint back, bit for bit. The run's config decides rates and settings, the checkpoint the state."""
    ranks = len(list((checkpoint / "dataloader").glob("rank_*.json")))
    if ranks != trainer.world.size:
        raise UserError(
            f"{checkpoint} was saved by {ranks} processes, and this run has {trainer.world.size}; the order of the "
            f"data would change. Go on with {ranks} processes, or start a new run from it with checkpoint.load_path"
        )
    load = trainer.checkpointer.load_part
    model = model_state(trainer)
    load(checkpoint, "model", model)
    if trainer.ema is not None:
        trainer.ema.load_state_dict({name: model[f"net_ema.{name}"] for name in trainer.ema.average})

    optim = empty_optimizer_state(trainer.network, trainer.optimizer, stored_shapes(checkpoint / "optim"))
    load(checkpoint, "optim", optim)
    restore_optimizer_state(trainer.network, trainer.optimizer, optim)

    schedule = {"last_epoch": torch.tensor(0)}
    load(checkpoint, "scheduler", schedule)
    set_schedule(trainer, int(schedule["last_epoch"]))

    state = {**counters(trainer), **prefixed_rng_state(trainer)}
    load(checkpoint, "trainer", state)
    trainer.iteration = int(state["iteration"])
    trainer.guard.load_state_dict({name: int(state[name]) for name in trainer.guard.state_dict()})
    if trainer.ema is not None:
        trainer.ema.started = bool(state["ema_started"])
    prefix = f"rng_state_{trainer.world.rank}."
    set_rng_state({name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)})

    position = trainer.checkpointer.load_dataloader(checkpoint)
    if position is None:
        raise UserError(f"{checkpoint} has no data position for rank {trainer.world.rank}")
    trainer.loader.load_state_dict(position)
    logger.info("the run goes on from %s: %d steps are done", checkpoint, trainer.iteration)


def warm_start(trainer: Trainer, load_path: str) -> None:
    """Starts a new run from the weights of another; says what was loaded and what was not."""
    model = model_state(trainer)
    report = load_weights(
        load_path,
        model,
        keys_to_skip=trainer.config.checkpoint.keys_to_skip_loading,
        no_dist=trainer.world.size == 1,
    )
    for line in report.lines():
        logger.info("%s", line)
    if trainer.ema is not None and any(name.startswith("net_ema.") for name in report.loaded):
        trainer.ema.load_state_dict({name: model[f"net_ema.{name}"] for name in trainer.ema.average})


def model_state(trainer: Trainer) -> dict[str, Tensor]:
    """`net.*` and `net_ema.*`: the live tensors themselves, not copies."""
    state = {f"net.{name}": parameter.detach() for name, parameter in trainer.network.named_parameters()}
    if trainer.ema is not None:
        state |= {f"net_ema.{name}": tensor for name, tensor in trainer.ema.state_dict().items()}
    return state


def counters(trainer: Trainer) -> dict[str, Tensor]:
    numbers = {"iteration": trainer.iteration, **trainer.guard.state_dict()}
    numbers["ema_started"] = trainer.ema is not None and trainer.ema.started
    return {name: torch.tensor(int(value)) for name, value in numbers.items()}


def prefixed_rng_state(trainer: Trainer) -> dict[str, Tensor]:
    return {f"rng_state_{trainer.world.rank}.{name}": value for name, value in rng_state().items()}


def set_schedule(trainer: Trainer, steps: int) -> None:
    """Moves the schedule to `steps` optimizer steps, with the rates that the run's own config gives there."""
    from worldsmith.training.scheduler import multiplier

    inner = trainer.scheduler.scheduler
    rates = [base * multiplier(trainer.scheduler.config, steps) for base in inner.base_lrs]
    state: dict[str, Any] = {**inner.state_dict(), "base_lrs": inner.base_lrs}
    inner.load_state_dict({**state, "last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates})
    for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
