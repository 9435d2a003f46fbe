"""Lines that a run prints before its first step; plans print them too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.run.checkpoint_store import newer_stored, store_address
from worldsmith.checkpoint.run.checkpointer import load_positions
from worldsmith.checkpoint.run.find_checkpoint import gone_back
from worldsmith.checkpoint.sources.warm_start import compare_weights, open_with_adapter
from worldsmith.data.stream import dataset_record
from worldsmith.distributed.attention_kernels import describe_kernels
from worldsmith.distributed.world import World, local_size, present_device
from worldsmith.files.locks import in_use
from worldsmith.files.remote import SECRETS
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import in_simulation
from worldsmith.models.weights.weight_table import counts, table_of
from worldsmith.monitor.short_text import format_bytes, short_number
from worldsmith.training.preflight import checkpoint_size, describe_states, kept_checkpoints, lack_of_memory, run_states
from worldsmith.training.start_checks import (
    optimizer_state_names,
    require_same_data,
    require_training_state,
    state_shapes,
    steps_done,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Preview, Task
    from worldsmith.training.callbacks.base import TrainingRun
    from worldsmith.training.run_config import RunConfig
    from worldsmith.training.validation import Validator


def start_lines(run: TrainingRun, batch: Any) -> Iterator[str]:
    """Yields the lines that a run prints at its start: folder, model, memory, data, steps and validation.

    Args:
        run: The run.
        batch: First batch of this rank.
    """
    config, task, loader = run.config, run.task, run.state.loader
    yield f"run folder   {run.run_folder}{describe_start(config, run.resumed)}"
    if run.uploads.address is not None:
        yield f"store        checkpoints are uploaded to {run.uploads.public_address}{run.uploads.downloaded}"
    for callback in run.callbacks.values():
        yield from callback.start_lines(run)
    yield from model_lines(config, run.model.network, task, run.state.optimizer)
    yield from kernel_lines(run.model, *task.size(batch))
    yield from state_lines(config, run.model, run.world.size, run.run_folder)
    yield f"data         {loader.describe()}"
    yield from step_lines(config, loader, *task.size(batch), done=run.iteration, processes=run.world.data_size)
    yield from validation_lines(config, run.validator)


def describe_start(config: RunConfig, checkpoint: Path | None) -> str:
    if checkpoint is not None:
        return f" (resumes from {checkpoint.name})"
    start = config.initial_weights()
    return f" (new, {'random weights' if start is None else start.path})"


def model_lines(config: RunConfig, network: nn.Module, task: Task, optimizer: Optimizer) -> list[str]:
    """Returns lines on model family, parameters, weight decay and weight conversions (such as quantization).

    Call it after the trained parameters were selected.
    """
    total, trained = counts(table_of(task.model))
    average = ", with EMA weights" if config.model.config.ema.enabled else ""
    return [
        f"model        {config.model.name}: {short_number(total)} parameters, {short_number(trained)} trained, "
        f"{short_number(total - trained)} frozen{average}",
        *decay_lines(optimizer),
        *(f"converter    {done.describe(bytes_per_weight(config))}" for done in task.model.conversions),
        *(f"{word:<13}{line}" for word, line in task.describe_weights(config, base_rates(network, optimizer))),
    ]


def kernel_lines(model: Model, samples: int, tokens: int) -> Iterator[str]:
    """Yields a line on the attention kernels that are used on the device of the model.

    There is no line if the network does not use the attention of PyTorch, and in a simulation, which runs no kernels.

    Args:
        model: The model.
        samples: Number of samples in a packed batch.
        tokens: Number of tokens in the packed batch.
    """
    import torch

    heads = model.attention_heads
    if heads is not None and not in_simulation():
        dtype = getattr(torch, model.config.precision)
        yield f"kernels      {describe_kernels(str(model.device), dtype, heads, max(1, tokens // max(1, samples)))}"


def state_lines(config: RunConfig, model: Model, processes: int, folder: Path) -> Iterator[str]:
    """Yields lines on the sizes of the training state and of a checkpoint, with the free disk space.

    Args:
        config: Config of the run.
        model: Model whose trained parameters were selected.
        processes: Number of ranks.
        folder: Existing folder on the disk of the run folder.
    """
    states = run_states(config, model, processes)
    yield f"states       {describe_states(states)}, before activations"
    checkpoint, kept = checkpoint_size(config, model, processes), kept_checkpoints(config)
    stop = " and one for each stop" if config.checkpoint.keep_latest_k is None else ""
    yield (
        f"checkpoint   {format_bytes(checkpoint)} each, at most {kept} at a time = "
        f"{format_bytes(kept * checkpoint)}{stop}; free: {format_bytes(shutil.disk_usage(folder).free)}"
    )


def folder_lines(config: RunConfig, run_folder: Path, checkpoint: Path | None, changes: Sequence[str]) -> Iterator[str]:
    """Yields lines on the run folder, changed settings, checkpoints to be removed, and a run that uses the folder now.

    Args:
        config: Config of the run.
        run_folder: Run folder.
        checkpoint: Checkpoint to resume from; None: a new run.
        changes: Lines on changed settings, such as the result of `require_same_run`.
    """
    yield f"run folder   {run_folder}{describe_start(config, checkpoint)}"
    yield from (f"changed      {line}" for line in changes)
    lost = None if checkpoint is None else gone_back(checkpoint, config.checkpoint.keep_latest_k)
    if lost is not None:
        yield f"note         {lost}"
    address = store_address(config.checkpoint, config.job, run_folder)
    if address is not None and (newer := newer_stored(address, run_folder, checkpoint)) is not None:
        shown = SECRETS.sub("", address)
        yield f"note         the run downloads {newer} from {shown} and resumes from it, not as described here"
    user = in_use(run_folder)
    if user is not None:
        yield f"note         the run folder is in use, so starting the run now would fail: {user}"


def memory_notes(config: RunConfig, model: Model, processes: int) -> Iterator[str]:
    """Yields a line if the training state of a process does not fit in the free memory of this machine.

    Args:
        config: Config of the run.
        model: Model whose trained parameters were selected.
        processes: Number of ranks.
    """
    states = run_states(config, model, processes)
    lack = lack_of_memory(states, World(device=present_device()), min(processes, local_size()))
    if lack is not None:
        yield f"note         the run would not start on this machine: {lack}"


def decay_lines(optimizer: Optimizer) -> Iterator[str]:
    """Yields a line with the number of parameters without weight decay; no line if all or none have weight decay."""
    kinds = {bool(group["weight_decay"]) for group in optimizer.param_groups}
    if len(kinds) > 1:
        without_decay = [p for group in optimizer.param_groups for p in group["params"] if not group["weight_decay"]]
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        yield (
            f"decay        none for {len(without_decay)} of {count} trained tensors, "
            f"{short_number(sum(p.numel() for p in without_decay))} parameters"
        )


def bytes_per_weight(config: RunConfig) -> int:
    """Returns the bytes per element of a frozen weight: 2 if `fsdp_master_dtype` is "bfloat16", else 4."""
    return 2 if config.model.config.parallelism.fsdp_master_dtype == "bfloat16" else 4


def base_rates(network: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """Returns the learning rate of each trained parameter by its internal name, before the schedule is applied."""
    rates = {id(p): group.get("initial_lr", group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    return {name: rates[id(p)] for name, p in native_parameters(network).items() if id(p) in rates}


def validation_lines(config: RunConfig, validator: Validator | None) -> Iterator[str]:
    """Yields lines on interval and data of the validation, or that it is disabled; no line without validation data."""
    loop = config.trainer
    if validator is not None:
        start = "before the first step, " if loop.run_validation_on_start else ""
        most = "all samples" if loop.max_val_iter is None else f"at most {loop.max_val_iter} packs on each process"
        yield f"validation   {start}after every {loop.validation_iter} steps and the last: {most}"
        yield f"             {validator.loader.describe()}"
    elif config.dataloader_val is not None:
        yield "validation   none; enable it with `-- trainer.run_validation=true`"


def step_lines(
    config: RunConfig, loader: PackingDataLoader, samples: int, tokens: int, *, done: int, processes: int
) -> list[str]:
    """Returns lines on samples and tokens per step and on the number of epochs, estimated from one packed batch.

    Args:
        config: Config of the run.
        loader: Training data.
        samples: Number of samples in the packed batch.
        tokens: Number of tokens in the packed batch.
        done: Number of completed steps.
        processes: Number of data-parallel ranks.
    """
    loop = config.trainer
    packs, steps = loop.grad_accum_iter * processes, loop.max_iter - done
    epochs = steps * packs * samples / len(loader.dataset)
    return [
        f"step         {packs} {'pack' if packs == 1 else 'packs'}, about {short_number(packs * samples)} samples and "
        f"{short_number(packs * tokens)} tokens",
        f"run          {f'steps {done + 1} to {loop.max_iter}' if done else f'{steps} steps'}, about "
        f"{short_number(steps * packs * samples)} samples and {short_number(steps * packs * tokens)} tokens: "
        f"{epochs:.1f} epochs",
    ]


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    """Report on the weights that a run would load at its start, as lines to print."""

    lines: list[str]
    training_state: Path | None = None
    """Checkpoint whose optimizer state, schedule, step count and data loader state a new run would load."""


def plan_initial_weights(config: RunConfig, network: nn.Module, optimizer: Optimizer, *, is_new: bool) -> LoadingPlan:
    """Compares names and shapes of the initial weights with those of the network; reads no tensor.

    Args:
        config: Config of the run.
        network: Network, may be on the meta device.
        optimizer: Optimizer of the network.
        is_new: Whether the run is new; a resumed run does not take over a training state.

    Returns:
        Lines to print, and the checkpoint whose training state would be loaded, if any.

    Raises:
        FileNotFoundError: If the initial weights do not exist.
        UserError: If they do not fit the network.
    """
    from worldsmith.checkpoint.run.optimizer_state import empty_optimizer_state

    settings, model, start = config.checkpoint, config.model.config, config.initial_weights()
    if start is None:
        return LoadingPlan([])
    shapes = state_shapes(network, model.ema)
    source = open_with_adapter(start.path, shapes, field=start.field, spec=config.model, adapter=settings.load_adapter)
    report = compare_weights(
        source,
        shapes,
        settings.keys_to_skip_loading,
        spec=config.model,
        average_as_live=settings.load_ema_to_reg,
    )
    lines = [f"weights      {line}" for line in ([start.describe] if start.unread else []) + report.lines()]
    if not is_new or not settings.load_training_state:
        return LoadingPlan(lines)
    state = require_training_state(report, config)
    empty_optimizer_state(network, optimizer, optimizer_state_names(state, report.skipped))
    return LoadingPlan(
        [*lines, f"state        optimizer state, schedule, step count and data loader state of {state}"], state
    )


def data_lines(
    config: RunConfig,
    task: Task,
    loader: PackingDataLoader,
    checkpoint: Path | None,
    processes: int,
    *,
    may_change: bool,
) -> list[str]:
    """Returns lines on the dataset and the next batch, which is read.

    Args:
        config: Config of the run.
        task: Task of the run.
        loader: Data loader; its position is changed.
        checkpoint: Checkpoint with the data loader state; None: the start of the data.
        processes: Number of data-parallel ranks.
        may_change: Whether the dataset may differ from that of the checkpoint.

    Raises:
        UserError: If the dataset has changed and `may_change` is False.
    """
    lines, done = [], 0
    if checkpoint is not None:
        record = checkpoint.parent.parent / dataset_record.FILE
        positions = load_positions(checkpoint)
        changes = require_same_data(loader, checkpoint, positions, record, may_change=may_change)
        lines += [f"changed      {line.strip()}" for line in changes.splitlines()]
        done = steps_done(checkpoint)
        if changes:
            loader.start_next_pass(positions)
        else:
            loader.load_states(positions)
    seen = task.preview(loader)
    return [
        f"data         {loader.describe()}",
        *lines,
        f"first pack   {describe_pack(seen)}",
        *step_lines(config, loader, seen.samples, seen.tokens, done=done, processes=processes),
    ]


def describe_pack(seen: Preview) -> str:
    """Formats the number of samples, of tokens and the first sample of a packed batch as a phrase for messages."""
    return f"{seen.samples} sample{'s' * (seen.samples != 1)}, {seen.tokens} tokens; {seen.first}"
