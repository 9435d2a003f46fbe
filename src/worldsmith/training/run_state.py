"""What of a run goes into a checkpoint, and how it comes back, bit for bit."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from worldsmith.checkpoint.dcp.parts import stored_shapes
from worldsmith.checkpoint.run import frozen_weights
from worldsmith.checkpoint.run.checkpointer import load_positions
from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state, optimizer_state, restore_optimizer_state
from worldsmith.checkpoint.run.rng_state import rng_state, seed_everything, set_rng_state
from worldsmith.checkpoint.sources.checkpoint_weights import AVERAGE, LIVE
from worldsmith.checkpoint.sources.warm_start import LoadReport, load_weights
from worldsmith.config.tree.plain import to_yaml
from worldsmith.data.clips import dataset_record
from worldsmith.files.atomic import write_text
from worldsmith.models.cosmos3.initialization import init_weights
from worldsmith.models.parameter_names import native_parameters
from worldsmith.training.run_folder import write_on_main
from worldsmith.training.start_checks import bare, require_same_data, require_training_state, wanted_moments

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.training.trainer import Trainer

logger = logging.getLogger(__name__)

LOAD_REPORT = "load_report.json"


def save_run(trainer: Trainer, *, background: bool = False) -> Path:
    """Writes a checkpoint of everything that the next step depends on. Raises SaveError."""
    model, texts = model_state(trainer), {"config.yaml": to_yaml(trainer.config)}
    if trainer.config.checkpoint.save_weights == "trained":
        texts[frozen_weights.FILE] = frozen_record(trainer)
        model = trained_part(trainer, model)
    parts = {
        "model": model,
        "optim": optimizer_state(trainer.network, trainer.optimizer),
        "scheduler": {"last_epoch": torch.tensor(trainer.scheduler.scheduler.last_epoch)},
        "trainer": {**counters(trainer), **prefixed_rng_state(trainer)},
    }
    return trainer.checkpointer.save(
        trainer.iteration,
        parts,
        dataloader=trainer.loader.state_dict(),
        texts=texts,
        background=background,
        retire=trainer.guard.consecutive == 0,  # while steps are skipped, the weights may be spoiled
    )


def restore_run(trainer: Trainer, checkpoint: Path, *, resume_changed: bool = False) -> None:
    """Puts a checkpoint of this run back. The config decides rates and settings, the checkpoint the state.

    On as many ranks as it was saved with, bit for bit; on others the tensors are sharded anew, and so is the data.
    Raises UserError when frozen weights are no longer what they were, or when the data set has changed and
    `resume_changed` is not set.
    """
    model = model_state(trainer)
    if frozen_weights.is_partial(checkpoint):
        start_weights(trainer)
        frozen_weights.require_same(checkpoint, frozen(trainer), source=describe_source(trainer))
        model = trained_part(trainer, model)
    trainer.checkpointer.load_part(checkpoint, "model", model)
    if trainer.ema is not None:
        trainer.ema.load_state_dict(average_of(trainer))
    restore_optimizer(trainer, checkpoint)
    state = restore_counters(trainer, checkpoint)
    if trainer.ema is not None:
        trainer.ema.started = bool(state["ema_started"])
    restore_position(trainer, checkpoint, record=trainer.run_folder / dataset_record.FILE, may_change=resume_changed)
    logger.info("the run goes on from %s: %d steps are done", checkpoint, trainer.iteration)


def start_run(trainer: Trainer) -> None:
    """Weights of a new run and, with `load_training_state`, everything else of the checkpoint that they come from."""
    report = start_weights(trainer, with_state=trainer.config.checkpoint.load_training_state)
    if report is None:
        return
    text = json.dumps(report.to_json(), indent=1) + "\n"
    write_on_main(trainer.world, trainer.run_folder, lambda: write_text(trainer.run_folder / LOAD_REPORT, text))
    if not trainer.config.checkpoint.load_training_state:
        return
    checkpoint = require_training_state(report, trainer.config)
    restore_optimizer(trainer, checkpoint, skipped=report.skipped)
    restore_counters(trainer, checkpoint)
    restore_position(trainer, checkpoint, record=checkpoint.parent.parent / dataset_record.FILE, may_change=True)
    logger.info("the run takes over the training state of %s: %d steps are done", checkpoint, trainer.iteration)


def start_weights(trainer: Trainer, *, with_state: bool = False) -> LoadReport | None:
    """The weights that a new run starts from: those of `load_path`, and drawn from the seed what it does not give.

    `with_state`: the training state is to come from there, too; before anything is read it must be there. Says what was
    loaded and what was not. An average that is not loaded starts as a copy.
    """
    settings, seed = trainer.config.checkpoint, trainer.config.trainer.seed
    report = None
    if settings.load_path is None:
        init_weights(trainer.generator.network, seed)
    else:
        generator = trainer.generator

        def prepare(report: LoadReport) -> None:
            if with_state:
                require_training_state(report, trainer.config)
            if report.left:
                init_weights(generator.network, seed, {bare(name) for name in report.left})

        report = load_weights(
            settings.load_path,
            model_state(trainer),
            keys_to_skip=settings.keys_to_skip_loading,
            spec=trainer.config.model,
            average_as_live=settings.load_ema_to_reg,
            prepare=prepare,
            world=trainer.world,
        )
        for line in report.lines():
            logger.info("%s", line)
    if trainer.ema is not None:
        if report is not None and any(name.startswith(AVERAGE) for name in report.loaded):
            trainer.ema.load_state_dict(average_of(trainer))
        else:
            trainer.ema.copy_live()
    return report


def restore_optimizer(trainer: Trainer, checkpoint: Path, *, skipped: Sequence[str] = ()) -> None:
    """Moments and step counts, and the place in the schedule. `skipped` weights (`net.<name>`) begin without any."""
    keys = wanted_moments(checkpoint, skipped)
    optim = empty_optimizer_state(trainer.network, trainer.optimizer, keys)
    trainer.checkpointer.load_part(checkpoint, "optim", optim)
    restore_optimizer_state(trainer.network, trainer.optimizer, optim)
    schedule = {"last_epoch": torch.tensor(0)}
    trainer.checkpointer.load_part(checkpoint, "scheduler", schedule)
    set_schedule(trainer, int(schedule["last_epoch"]))


def restore_counters(trainer: Trainer, checkpoint: Path) -> dict[str, Tensor]:
    """Step counts and random states; a rank that was not there before seeds its own."""
    stored = stored_shapes(checkpoint / "trainer")
    state = {
        name: value
        for name, value in {**counters(trainer), **prefixed_rng_state(trainer)}.items()
        if name in stored or not name.startswith("rng_state_")
    }
    trainer.checkpointer.load_part(checkpoint, "trainer", state)
    trainer.iteration = int(state["iteration"])
    trainer.guard.load_state_dict({name: int(state[name]) for name in trainer.guard.state_dict()})
    prefix = f"rng_state_{trainer.world.rank}."
    saved = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if saved:
        set_rng_state(saved)
    else:
        seed_everything(trainer.config.trainer.seed + trainer.world.rank + 1_000_003 * trainer.iteration)
    return state


def restore_position(trainer: Trainer, checkpoint: Path, *, record: Path, may_change: bool) -> None:
    """Where the data goes on. Another number of ranks is said; other data is an error unless it may change."""
    loader, positions = trainer.loader, load_positions(checkpoint)
    changes = require_same_data(loader, checkpoint, positions, record, may=may_change)
    if changes:
        number = loader.start_next_pass(positions)
        logger.warning("the data has changed since %s was saved; pass %d begins:\n%s", checkpoint, number, changes)
        return
    loader.load_states(positions)
    if len(positions) != loader.world_size:
        per_step = trainer.config.trainer.grad_accum_iter
        logger.warning(
            "%s was saved by %d data-parallel processes, and now there are %d: weights, optimizer and data position "
            "are dealt anew; a step has %d packs, and with trainer.grad_accum_iter = %d it had %d",
            checkpoint, len(positions), loader.world_size, per_step * loader.world_size, per_step,
            per_step * len(positions),
        )  # fmt: skip


def model_state(trainer: Trainer) -> dict[str, Tensor]:
    """`net.*` and `net_ema.*`: the live tensors themselves, not copies."""
    state = {LIVE + name: parameter.detach() for name, parameter in native_parameters(trainer.network).items()}
    if trainer.ema is not None:
        state |= {AVERAGE + name: tensor for name, tensor in trainer.ema.state_dict().items()}
    return state


def trained_part(trainer: Trainer, model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights that training changes, and their average."""
    parameters = native_parameters(trainer.network)
    return {name: tensor for name, tensor in model.items() if parameters[bare(name)].requires_grad}


def frozen(trainer: Trainer) -> dict[str, Tensor]:
    """The live weights that training does not change, by native name."""
    parameters = native_parameters(trainer.network)
    return {name: parameter.detach() for name, parameter in parameters.items() if not parameter.requires_grad}


def frozen_record(trainer: Trainer) -> str:
    """`frozen_weights.json`; made once, since these weights do not change."""
    if trainer.frozen_record is None:
        trainer.frozen_record = frozen_weights.record(frozen(trainer), source=describe_source(trainer))
    return trainer.frozen_record


def describe_source(trainer: Trainer) -> str:
    settings = trainer.config.checkpoint
    if settings.load_path is None:
        return f"random weights from trainer.seed = {trainer.config.trainer.seed}"
    return f"checkpoint.load_path = {settings.load_path}"


def average_of(trainer: Trainer) -> dict[str, Tensor]:
    """The average's own tensors, as they are after a load that filled them in place."""
    return dict(trainer.ema.average) if trainer.ema is not None else {}


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
