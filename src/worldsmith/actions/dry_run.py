"""`--dryrun` of `worldsmith train`: reports what would happen before the first step of a run.

It runs the checks on this machine, with the data and weights of the run, and allocates no weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.actions.action import Result
from worldsmith.actions.run_action import RunAction
from worldsmith.checkpoint.run.find_checkpoint import find_latest
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.paths import Path as Keys
from worldsmith.config.tree.references import resolve
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.gpus import Gpu, find_gpu, word_of_device
from worldsmith.distributed.world import World, device_remarks, present_device
from worldsmith.files.write_checks import nearest_folder
from worldsmith.planning.plan import make_plan
from worldsmith.planning.plan_text import memory_lines, time_lines, wrap_row
from worldsmith.tasks.registry import task_of
from worldsmith.training.preflight import build_optimizer, check_space, require_files, schedule_remarks
from worldsmith.training.run_folder import run_path
from worldsmith.training.start_checks import completion, optimizer_state_names, require_same_run, require_same_shapes
from worldsmith.training.start_lines import (
    data_lines,
    describe_pack,
    folder_lines,
    memory_notes,
    model_lines,
    plan_initial_weights,
    state_lines,
    validation_lines,
)

if TYPE_CHECKING:
    from worldsmith.models.model import Model
    from worldsmith.training.trainer import Trainer


class DryRun(RunAction):
    """Dry run of `worldsmith train`: reports what the run would do, or the error with which it would not start."""

    class Config(RunAction.Config):
        resume_changed: bool = False
        """Whether the run folder may belong to a run with another config or other data."""
        gpus: Count | None = None
        """Number of processes of the run; null: the environment variable WORLD_SIZE, else 1."""
        gpu: str | None = None
        """GPU type for which memory and time of a step are estimated; null: that of this machine. Without a GPU,
        the dry run contains no estimates."""

    config: Config

    def run(self) -> Result:
        return Result(self.lines())

    def lines(self) -> Iterator[str]:
        """Yields the output lines of the dry run; only one line if the run is complete already."""
        tree, gpu = self.tree, find_planned_gpu(self.config.gpu)
        folder, processes = run_path(tree.job), self.config.gpus or int(os.environ.get("WORLD_SIZE", "1"))
        complete = completion(folder, resolve(tree))
        if complete is not None:
            yield complete
        else:
            changed, variables = self.config.resume_changed, self.loaded.variables
            yield from plan_run(tree, folder, world_size=processes, resume_changed=changed, variables=variables)
            yield from step_plan_lines(tree, processes, gpu)


def plan_run(
    config: Trainer.Config,
    run_folder: Path,
    *,
    world_size: int,
    resume_changed: bool = False,
    variables: Mapping[Keys, str] | None = None,
) -> Iterator[str]:
    """Yields lines that describe what a training would do before its first step. Changes no files.

    Each line is yielded as soon as it is known. Another process may train the same run at the same time.

    Args:
        config: Unresolved config of the run.
        run_folder: Folder of the run; it does not need to exist.
        world_size: Number of ranks that the run is planned for.
        resume_changed: Accept a run folder whose config or data differ from `config`.
        variables: Environment variables that set config values, to be named in messages.

    Raises:
        UserError: If the run would fail before its first step; other errors are raised as in the run itself. Too
            little disk space is raised last, because the run is often planned on another machine.
    """
    from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state
    from worldsmith.training.validation import Validator

    degrees = plan_degrees(config.model.config.parallelism, world_size)
    require_files(config, run_folder, variables=variables)
    disk_folder = nearest_folder(run_folder)
    checkpoint = find_latest(run_folder / "checkpoints", World())
    changes = [] if checkpoint is None else require_same_run(run_folder, config, resume_changed=resume_changed)
    model: Model = config.model.config.build(device="meta")
    build_task = partial(task_of(config.model.name), model=model, objective=config.objective)
    task = build_task(data=config.dataloader_train)
    yield from folder_lines(config, run_folder, checkpoint, changes)
    yield f"processes    {world_size} ({degrees})"
    yield from (f"note         {remark}" for remark in device_remarks(world_size))
    yield from (f"{word:<13}{line}" for word, line in task.remarks())
    optimizer = build_optimizer(config, model.network)
    yield from model_lines(config, model.network, task, optimizer)
    yield from state_lines(config, model, world_size, disk_folder)
    yield from memory_notes(config, model, world_size)
    too_small = None
    try:
        yield from (f"note         {remark}" for remark in check_space(config, model, world_size, disk_folder))
    except UserError as error:
        too_small = error
    state, may_change = checkpoint, resume_changed
    if checkpoint is None or is_partial(checkpoint):
        loading = plan_initial_weights(config, model.network, optimizer, is_new=checkpoint is None)
        yield from loading.lines
        if loading.training_state is not None:
            state, may_change = loading.training_state, True
    if checkpoint is not None:
        require_same_shapes(checkpoint, model.network, model.config.ema, changes=changes)
        empty_optimizer_state(model.network, optimizer, optimizer_state_names(checkpoint))
    processes = world_size // config.model.config.parallelism.context_parallel_shard_degree
    loader = task.loader(dry=True)
    yield from data_lines(config, task, loader, state, processes, may_change=may_change)
    validator = None
    if config.trainer.run_validation:
        assert config.dataloader_val is not None  # else RunConfig.check refuses it
        validation_task = build_task(data=config.dataloader_val, split="val")
        validator = Validator(validation_task, max_packs=config.trainer.max_val_iter)
    yield from validation_lines(config, validator)
    if validator is not None:
        yield f"             first pack: {describe_pack(validator.task.preview(validator.loader))}"
        yield from (f"note         {remark}" for remark in validator.remarks(loader.dataset, run_folder))
    yield from (f"note         {remark}" for remark in schedule_remarks(config))
    if too_small is not None:
        raise too_small


def find_planned_gpu(name: str | None) -> Gpu | None:
    """Returns the GPU type with this name, such as "h100-80"; for None that of this machine, or None without a GPU.

    Raises UserError if no GPU type has this name.
    """
    device = present_device()
    if name is None and device.startswith("cuda"):
        name = word_of_device(device)
    return None if name is None else find_gpu(name)


def step_plan_lines(config: Trainer.Config, ranks: int, gpu: Gpu | None) -> Iterator[str]:
    """Yields lines with memory and time estimates of a step on `ranks` GPUs; one line with advice if `gpu` is None.

    The step is simulated, which needs seconds to a minute of CPU time. If that fails, the error is yielded as a line.
    """
    if gpu is None:
        yield "plan         add --gpu h100-80 (or another GPU) to estimate peak memory, seconds per step and hours"
        return
    try:
        plan = make_plan(config, ranks, gpu)
    except Exception as error:
        yield f"note         no estimates: the step cannot be simulated: {type(error).__name__}: {error}"
        return
    yield from wrap_row("plan", f"simulated step on {ranks} × {gpu.name}: {plan.data}")
    yield from memory_lines(plan)
    yield from time_lines(plan)
