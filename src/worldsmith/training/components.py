"""`RunComponents`: the model, task, state, validator and callbacks of a run, built from its config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.tasks.registry import task_of
from worldsmith.training.parallel import build_model
from worldsmith.training.preflight import check_space, schedule_remarks
from worldsmith.training.run_state import RunState
from worldsmith.training.start_checks import require_same_dataset
from worldsmith.training.validation import Validator

if TYPE_CHECKING:
    from worldsmith.checkpoint.run.checkpointer import Checkpointer
    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Task
    from worldsmith.training.callbacks.base import Callback
    from worldsmith.training.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class RunComponents:
    """What the config of a run describes. The network has no values until `state` starts or restores."""

    model: Model
    task: Task
    state: RunState
    validator: Validator | None
    callbacks: dict[str, Callback]

    @property
    def loaders(self) -> dict[str, PackingDataLoader]:
        """Loaders of the data, by "train" and "val"."""
        return {"train": self.state.loader, **({"val": self.validator.loader} if self.validator else {})}

    def remarks(self) -> Iterator[str]:
        """Warnings about learning rates, disk space and validation data.

        Raises UserError if not even one checkpoint fits on the disk.
        """
        state = self.state
        space = check_space(state.config, self.model, state.world.size, state.checkpointer.folder)
        yield from schedule_remarks(state.config)
        yield from space
        if self.validator is not None and state.world.is_main:
            yield from self.validator.remarks(state.loader.dataset, state.run_folder)


def build_components(config: RunConfig, checkpointer: Checkpointer, run_folder: Path) -> RunComponents:
    """Builds the components of a run. All ranks call it together. Raises UserError if their data sets differ."""
    world = checkpointer.world
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
    return RunComponents(model, task, state, validator, callbacks)
