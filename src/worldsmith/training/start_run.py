"""Start-up of a run: builds its components from the config, and starts or resumes it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.distributed.attention_kernels import activate_flash_attention
from worldsmith.distributed.memory import held_memory
from worldsmith.files.locks import release_leases
from worldsmith.tasks.registry import task_of
from worldsmith.training.parallel import build_model, prepare_process
from worldsmith.training.preflight import check_space, schedule_remarks
from worldsmith.training.run_state import RunState
from worldsmith.training.start_checks import require_same_dataset, require_same_run
from worldsmith.training.validation import Validator

if TYPE_CHECKING:
    from worldsmith.checkpoint.run.checkpointer import Checkpointer
    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Task
    from worldsmith.training.callbacks.base import Callback
    from worldsmith.training.run_config import RunConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunComponents:
    """Components of a run: model, task, training state, validator (None: no validation), callbacks by name."""

    model: Model
    task: Task
    state: RunState
    validator: Validator | None
    callbacks: dict[str, Callback]
    memory_before: int
    """Memory in bytes that the process used before the model was built."""

    @property
    def loaders(self) -> dict[str, PackingDataLoader]:
        """Data loaders by "train" and "val"."""
        return {"train": self.state.loader, **({"val": self.validator.loader} if self.validator else {})}


def start_run(
    config: RunConfig, checkpointer: Checkpointer, run_folder: Path, checkpoint: Path | None, *, resume_changed: bool
) -> RunComponents:
    """Builds a run and starts or resumes it. Collective.

    Args:
        config: Resolved config.
        checkpointer: Checkpointer of the run, with its ranks.
        run_folder: Run folder.
        checkpoint: Checkpoint to resume from; None: a new run.
        resume_changed: Whether settings and data may differ from those of the checkpoint.

    Raises:
        UserError: If the run does not fit the checkpoint, the disk or the data, or if ranks differ.
    """
    world = checkpointer.world
    changes = [] if checkpoint is None else require_same_run(run_folder, config, resume_changed=resume_changed)
    for line in changes:
        logger.warning("changed since the run was started: %s", line)
    prepare_process(config.trainer, world)
    run = build_components(config, checkpointer, run_folder)
    remarks = [*schedule_remarks(config), *check_space(config, run.model, world.size, checkpointer.folder)]
    if run.validator is not None and world.is_main:
        remarks += run.validator.remarks(run.state.loader.dataset, run_folder)
    for remark in remarks:
        logger.log(logging.WARNING if world.is_main else logging.DEBUG, "%s", remark)
    if checkpoint is None:
        run.state.start()
    else:
        run.state.restore(checkpoint, changes=changes, resume_changed=resume_changed)
    release_leases()
    return run


def build_components(config: RunConfig, checkpointer: Checkpointer, run_folder: Path) -> RunComponents:
    """Builds the components of a run with uninitialized weights. Collective; UserError if datasets differ."""
    world = checkpointer.world
    activate_flash_attention(world.device)
    memory_before = held_memory(world.device)
    model: Model = build_model(config.model.config, world)
    build_task = partial(
        task_of(config.model.name), model=model, objective=config.objective, world=world, run_folder=run_folder
    )
    task: Task = build_task(data=config.dataloader_train)
    loader = task.loader()
    state = RunState(config, model=model, loader=loader, checkpointer=checkpointer, run_folder=run_folder)
    require_same_dataset(world, loader.dataset)
    validator = None
    if config.trainer.run_validation:
        assert config.dataloader_val is not None  # else RunConfig.check refuses it
        validation_task = build_task(data=config.dataloader_val, split="val")
        validator = Validator(validation_task, max_packs=config.trainer.max_val_iter)
        require_same_dataset(world, validator.loader.dataset)
    callbacks = {name: callback.build(folder=run_folder / name) for name, callback in config.trainer.callbacks.items()}
    return RunComponents(model, task, state, validator, callbacks, memory_before)
