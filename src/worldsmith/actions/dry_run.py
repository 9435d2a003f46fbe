"""`--dryrun`: all that happens before the first step of a run, short of allocating."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import Action, Result
from worldsmith.checkpoint.run.checkpointer import load_positions
from worldsmith.checkpoint.run.folders import find_latest, gone_back
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.warm_start import plan_loading
from worldsmith.config import Configurable
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.paths import Path as Keys
from worldsmith.config.tree.references import resolve
from worldsmith.data.stream import dataset_record
from worldsmith.distributed.gpus import Gpu, find_gpu, word_of_device
from worldsmith.distributed.world import World, device_remarks, local_size, present_device
from worldsmith.files.record_lock import in_use
from worldsmith.files.writable import nearest_folder
from worldsmith.models.weights.table import table_of
from worldsmith.tasks.registry import task_of
from worldsmith.training.file_checks import require_files
from worldsmith.training.parallel import plan_degrees
from worldsmith.training.preflight import (
    build_optimizer,
    check_space,
    lack_of_memory,
    schedule_remarks,
    start_of,
)
from worldsmith.training.run_folder import completion, require_same_run, run_path
from worldsmith.training.start_checks import (
    require_fit,
    require_same_data,
    require_training_state,
    state_shapes,
    steps_done,
    wanted_moments,
)
from worldsmith.training.start_lines import (
    describe_start,
    model_lines,
    state_lines,
    step_lines,
    validation_lines,
)
from worldsmith.training.state_bytes import state_bytes

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Preview, Task
    from worldsmith.training.trainer import Trainer


class DryRun(Action):
    """Says what a run would do, or why it would not start."""

    class Config(Action.Config):
        run: Configurable.Config
        """The run, with its references resolved."""
        resume_changed: bool = False
        """The run folder may be that of a run with another config or other data."""
        gpus: Count | None = None
        """Processes of the run; null: what WORLD_SIZE says, or one."""
        gpu: str | None = None
        """The GPU that a step is planned for; null: the one that is here. Without any a dry run is quick."""

    config: Config

    def __init__(self, config: Config, *, variables: Mapping[Keys, str] | None = None) -> None:
        """`variables`: names of the environment variables that gave values of the run."""
        super().__init__(config)
        self.variables = variables

    def run(self) -> Result:
        return Result(self.lines())

    def lines(self) -> Iterator[str]:
        tree: Any = self.config.run
        gpu = gpu_of_plan(self.config.gpu)
        folder, processes = run_path(tree.job), self.config.gpus or int(os.environ.get("WORLD_SIZE", "1"))
        complete = completion(folder, resolve(tree))
        if complete is not None:
            yield complete
        else:
            about: dict[str, Any] = {"resume_changed": self.config.resume_changed, "variables": self.variables}
            yield from plan_run(tree, folder, world_size=processes, **about)
            yield from step_plan_lines(tree, processes, gpu)


def plan_run(
    config: Trainer.Config,
    run_folder: Path,
    *,
    world_size: int,
    resume_changed: bool = False,
    variables: Mapping[Keys, str] | None = None,
) -> Iterator[str]:
    """The lines of the plan, as they become known. Raises what the run itself would raise before its first step.

    Only reads: also a run that is training at this moment may be planned. A disk that is too small is told at the end:
    the machine that plans a run is often not the one that trains it.
    """
    from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state
    from worldsmith.training.validation import Validator

    degrees = plan_degrees(config.model.config, world_size)
    require_files(config, run_folder, variables=variables)
    place = nearest_folder(run_folder)
    checkpoint = find_latest(run_folder / "checkpoints", World())
    changes = [] if checkpoint is None else require_same_run(run_folder, config, resume_changed=resume_changed)
    model: Model = config.model.config.build(device="meta")
    task = task_of(config.model.name)(model=model, objective=config.objective, data=config.dataloader_train)
    yield f"run folder   {run_folder}{describe_start(config, checkpoint)}"
    yield from (f"changed      {line}" for line in changes)
    lost = None if checkpoint is None else gone_back(checkpoint, config.checkpoint.keep_latest_k)
    if lost is not None:
        yield f"note         {lost}"
    user = in_use(run_folder)
    if user is not None:
        yield f"note         the run folder is in use now, and a start would be refused: {user}"
    yield f"processes    {world_size} ({degrees})"
    yield from (f"note         {remark}" for remark in device_remarks(world_size))
    yield from (f"{word:<13}{line}" for word, line in task.remarks())
    optimizer = build_optimizer(config, model.network)
    yield from model_lines(config, model.network, task, optimizer)
    yield from state_lines(config, model, world_size, place)
    states = state_bytes(table_of(model), config, degrees)
    lack = lack_of_memory(states, World(device=present_device()), min(world_size, local_size()))
    if lack is not None:
        yield f"note         here the run would not start: {lack}"
    too_small = None
    try:
        yield from (f"note         {remark}" for remark in check_space(config, model, world_size, place))
    except UserError as error:
        too_small = error
    state, may_change = checkpoint, resume_changed
    if checkpoint is None or is_partial(checkpoint):
        lines, taken_over = weight_lines(config, model.network, optimizer, is_new=checkpoint is None)
        yield from lines
        if taken_over is not None:
            state, may_change = taken_over, True
    if checkpoint is not None:
        require_fit(checkpoint, model.network, model.config.ema, changes=changes)
        empty_optimizer_state(model.network, optimizer, wanted_moments(checkpoint))
    processes = world_size // config.model.config.parallelism.context_parallel_shard_degree
    loader = task.loader(dry=True)
    yield from data_lines(config, task, loader, state, processes, may_change=may_change)
    validator = Validator(config, model=model) if config.trainer.run_validation else None
    yield from validation_lines(config, validator)
    if validator is not None:
        yield f"             first pack: {describe_pack(validator.task.preview(validator.loader))}"
        yield from (f"note         {remark}" for remark in validator.remarks(loader.dataset, run_folder))
    yield from (f"note         {remark}" for remark in schedule_remarks(config))
    if too_small is not None:
        raise too_small


def gpu_of_plan(word: str | None) -> Gpu | None:
    """The GPU that is named, or the one that is here, if any. Raises UserError for a word that names none."""
    device = present_device()
    if word is None and device.startswith("cuda"):
        word = word_of_device(device)
    return None if word is None else find_gpu(word)


def step_plan_lines(config: Trainer.Config, ranks: int, gpu: Gpu | None) -> Iterator[str]:
    """Memory, what makes it, seconds and hours, from a step without memory, which takes seconds to a minute.

    What goes wrong in it does not keep a run from starting.
    """
    if gpu is None:
        yield "plan         with --gpu h100-80, or another: memory at its worst, whether that fits, seconds and hours"
        return
    from worldsmith.planning.plan import make_plan
    from worldsmith.planning.text import line, memory_lines, time_lines

    try:
        plan = make_plan(config, ranks, gpu)
    except Exception as error:
        yield f"note         the step cannot be carried out without memory: {type(error).__name__}: {error}"
        return
    yield from line("plan", f"a step without memory on {ranks} × {gpu.name}: {plan.data}")
    yield from memory_lines(plan)
    yield from time_lines(plan)


def weight_lines(
    config: Trainer.Config, network: nn.Module, optimizer: Optimizer, *, is_new: bool
) -> tuple[list[str], Path | None]:
    """What would be loaded: names and shapes are compared, no tensor is read.

    Also the checkpoint whose training state would be taken over, if it would.
    """
    from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state

    settings, model, start = config.checkpoint, config.model.config, start_of(config)
    if start is None:
        return [], None
    report = plan_loading(
        start.path,
        state_shapes(network, model.ema),
        settings.keys_to_skip_loading,
        spec=config.model,
        average_as_live=settings.load_ema_to_reg,
        field=start.field,
    )
    lines = [f"weights      {line}" for line in ([start.describe] if start.unread else []) + report.lines()]
    if not is_new or not settings.load_training_state:
        return lines, None
    source = require_training_state(report, config)
    empty_optimizer_state(network, optimizer, wanted_moments(source, report.skipped))
    return [*lines, f"state        optimizer, schedule, step count and data position of {source}"], source


def data_lines(
    config: Trainer.Config,
    task: Task,
    loader: PackingDataLoader,
    checkpoint: Path | None,
    processes: int,
    *,
    may_change: bool,
) -> list[str]:
    """What the data set holds, and the next batch of a run that goes on from `checkpoint`, which was really read."""
    lines, done = [], 0
    if checkpoint is not None:
        record = checkpoint.parent.parent / dataset_record.FILE
        positions = load_positions(checkpoint)
        changes = require_same_data(loader, checkpoint, positions, record, may=may_change)
        lines += [f"changed      {line.strip()}" for line in changes.splitlines()]
        done = steps_done(checkpoint)
        if changes:
            loader.start_next_pass(positions)
        else:
            loader.load_states(positions)
    seen = task.preview(loader)
    return [
        f"data         {task.describe_data(loader)}",
        *lines,
        f"first pack   {describe_pack(seen)}",
        *step_lines(config, loader, seen.samples, seen.tokens, done=done, processes=processes),
    ]


def describe_pack(seen: Preview) -> str:
    return f"{seen.samples} sample{'s' * (seen.samples != 1)}, {seen.tokens} tokens; {seen.first}"
