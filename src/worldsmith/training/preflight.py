"""Checks before a run is built: missing files, too little memory or disk space, unusual settings.

A component checks its own files: `check_files` of its Config raises for missing files, reads little and downloads no
file.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from worldsmith.checkpoint.run.checkpoint_store import newer_stored, require_access, store_address
from worldsmith.checkpoint.run.find_checkpoint import list_candidates
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.open_weights import require_weights
from worldsmith.checkpoint.sources.remote_model import fetch_model
from worldsmith.checkpoint.sources.warm_start import ADAPTER_FILES, read_initial_adapter
from worldsmith.config.declare.configurable import find, walk
from worldsmith.config.errors import Problem, UserError
from worldsmith.config.tree.paths import Path as Keys
from worldsmith.config.tree.paths import format_path
from worldsmith.config.tree.references import resolve
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.degrees import plan_degrees
from worldsmith.distributed.memory import free_memory
from worldsmith.distributed.world import World, local_size
from worldsmith.files.remote import in_store
from worldsmith.files.write_checks import require_writable
from worldsmith.models.model_files import find_without_download
from worldsmith.models.weights.weight_table import table_of
from worldsmith.monitor.short_text import MEMORY_NAMES, format_bytes
from worldsmith.tasks.registry import task_of
from worldsmith.training.run_config import RunConfig, why_not_encodable
from worldsmith.training.run_folder import run_path
from worldsmith.training.state_bytes import StateBytes, checkpoint_bytes, state_bytes

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from worldsmith.models.model import Model
    from worldsmith.tasks.task import Task
    from worldsmith.training.optimizer import AdamW

logger = logging.getLogger(__name__)


def check_files(
    config: RunConfig,
    run_folder: Path | None = None,
    *,
    mistakes: Sequence[Problem] = (),
    variables: Mapping[Keys, str] | None = None,
) -> list[Problem]:
    """Checks the files that a run reads, and whether its folder can be written.

    A run that resumes from a checkpoint with all weights does not need its initial weights.

    Args:
        config: Config of the run.
        run_folder: Run folder; None: not known yet.
        mistakes: Known mistakes of the config; files that depend on them are not checked.
        variables: Names of the environment variables that set config values, for messages.

    Returns:
        Problems in the order of the config.
    """
    config = config if mistakes else resolve(config)
    wrong = [problem.keys for problem in mistakes if problem.path]
    problems = []
    needs_base, is_new, section = True, True, "job"
    try:
        if not is_text_wrong(config, ("job",), wrong):
            folder = run_folder or run_path(config.job)
            require_writable(folder, what="the run folder ")
            candidates = list_candidates(folder / "checkpoints").checkpoints
            is_new = not candidates
            needs_base = is_new or is_partial(candidates[0])
            section, address = "checkpoint.upload_to", store_address(config.checkpoint, config.job, folder)
            if address is not None:
                require_access(address, deletes=config.checkpoint.keep_latest_k is not None)
                if newer_stored(address, folder, next(iter(candidates), None)) is not None:
                    is_new, needs_base = False, config.checkpoint.save_weights == "trained"
    except (UserError, OSError) as error:
        problems.append(Problem(section, str(error)))
    for path, node in walk(config):
        check = getattr(node, "check_files", None)
        if node is config.checkpoint and needs_base:
            check = partial(require_start, config, is_new=is_new)
        if check is None or (path[:1] == ("dataloader_val",) and not config.trainer.run_validation):
            continue
        if is_text_wrong(config, path, wrong):
            continue
        try:
            check()
        except (UserError, DataError, OSError, ValueError) as error:
            problems.append(Problem(format_path(path), name_variable(str(error), config, path, variables or {})))
        except Exception:
            if not mistakes:  # it was not made for values that are wrong
                raise
    return problems


def name_variable(message: str, config: RunConfig, section: Keys, variables: Mapping[Keys, str]) -> str:
    """Returns `message`; if it contains a config value from an environment variable, the variable's name is appended.

    Only values in `section` of the config are searched for. `variables`: environment variable by config path.
    """
    for path, name in variables.items():
        value = find(config, path) if path[: len(section)] == section else None
        if isinstance(value, str) and value and value in message:
            return f"{message} ({format_path(path)} is the value of the environment variable {name})"
    return message


def is_text_wrong(config: RunConfig, section: Keys, wrong: Sequence[Keys]) -> bool:
    """Returns whether one of the invalid values, whose config paths are `wrong`, may be a file name in `section`.

    That is a string or None in a direct field of the section. The files of the section then cannot be checked.
    """
    return any(path[:-1] == section and isinstance(find(config, path), (str, NoneType)) for path in wrong)


def require_start(config: RunConfig, *, is_new: bool) -> None:
    """Checks the initial weights of a run: the base weights exist, and the adapters of a new run fit its config.

    Reads no tensor of the base weights, and downloads nothing.

    Raises:
        FileNotFoundError: If a file is missing.
        UserError: If the weights are not supported, or the adapters do not fit.
        ValueError: If the adapters are not plain LoRA of the network.
    """
    start, adapter = config.initial_weights(), config.checkpoint.load_adapter
    if start is not None:
        require_weights(start.path, field=start.field.removeprefix("checkpoint."), family=config.model.name)
    if not is_new or adapter is None:
        return
    if in_store(adapter):
        fetch_model(adapter, field="load_adapter", download=False)
    elif find_without_download(adapter, file_patterns=ADAPTER_FILES, field="load_adapter"):
        read_initial_adapter(adapter, config.model, field="load_adapter")


def require_files(
    config: RunConfig, run_folder: Path, world: World | None = None, variables: Mapping[Keys, str] | None = None
) -> None:
    """Raises UserError on all ranks with all problems that `check_files` finds on rank 0. Collective.

    Args:
        config: Config of the run.
        run_folder: Run folder.
        world: Ranks of the run; None: one process.
        variables: Names of the environment variables that set config values, for messages.
    """
    world = world or World()
    problems = world.broadcast(check_files(config, run_folder, variables=variables) if world.is_main else None)
    lines = [f"{problem.path}: {problem.message}" for problem in problems]
    if len(lines) > 1:
        lines = [f"{len(lines)} settings or files are missing or wrong:", *(f"  {line}" for line in lines)]
    if lines:
        raise UserError("\n".join(lines))


def schedule_remarks(config: RunConfig) -> Iterator[str]:
    """Yields warnings about the learning rate that depend on several config sections.

    Args:
        config: Config of the run; its schedule, number of steps, learning rate and model are used.
    """
    from worldsmith.training.scheduler import TRIAL_STEPS, multiplier

    schedule, steps = config.scheduler, config.trainer.max_iter
    warm_up = schedule.warm_up_steps[0]
    if steps == 1 and multiplier(schedule, 0) == 0:
        yield "scheduler: the only step has learning rate 0 (f_start is 0), so no weight changes"
    if TRIAL_STEPS < steps <= warm_up < schedule.cycle_lengths[0]:  # the config warns of a warm-up above its cycle
        yield f"scheduler: the run of {steps} steps ends within the warm-up of {warm_up} steps"
    yield from rate_warnings(config)


def rate_warnings(config: RunConfig) -> Iterator[str]:
    """Yields warnings if the learning rate or the LoRA scale is far from the usual values of the model family."""
    model, rate = config.model.config, config.optimizer.lr
    if model.lora_enabled and 2 * model.lora_alpha < model.lora_rank:
        yield (
            f"adapters have the scale lora_alpha / lora_rank = {model.lora_alpha}/{model.lora_rank}: they learn "
            "little unless the learning rate is high; usual values are 1/2 to 2"
        )
    least, most = model.usual_rates.get(model.lora_enabled, (0.0, math.inf))
    if not least <= rate <= most and config.initial_weights() is not None:
        kind = "with adapters" if model.lora_enabled else "without adapters"
        yield f"optimizer.lr = {rate:g}; usual values are {least:g} to {most:g} for '{model.family}' {kind}"


def run_states(config: RunConfig, model: Model, processes: int) -> StateBytes:
    """Returns the bytes of the training state of each process. Call it after the trained parameters were selected."""
    return state_bytes(table_of(model), config, plan_degrees(model.config.parallelism, processes))


def checkpoint_size(config: RunConfig, model: Model, processes: int) -> int:
    """Returns the estimated bytes of a checkpoint on disk. Call it after the trained parameters were selected."""
    return checkpoint_bytes(table_of(model), config, plan_degrees(model.config.parallelism, processes)).files


def kept_checkpoints(config: RunConfig) -> int:
    """Returns the max number of checkpoints on disk at the same time, including the one that is being written."""
    saves = -(-config.trainer.max_iter // config.checkpoint.save_iter)
    keep, every, best = config.checkpoint.keep_latest_k, config.checkpoint.keep_every, config.checkpoint.keep_best
    if best is not None:
        saves += config.trainer.max_iter // config.trainer.validation_iter
    if keep is None:
        return saves
    return min(saves, keep + 1 + (best is not None) + (config.trainer.max_iter // every if every else 0))


def build_optimizer(config: RunConfig, network: nn.Module) -> Optimizer:
    """Builds the optimizer of a network on the meta device, and freezes the parameters that the run does not train.

    Args:
        config: Config of the run.
        network: Network on the meta device, changed in place.
    """
    adamw: AdamW = replace(config.optimizer, fused=False).build(network=network)  # a meta device has no fused kernel
    return adamw.optimizer


def describe_states(states: StateBytes) -> str:
    """Formats the sizes of the training state of one process."""
    sizes = ", ".join(f"{MEMORY_NAMES.get(name, name)} {format_bytes(count)}" for name, count in states.parts.items())
    offloaded = f", and {format_bytes(states.offloaded)} in host RAM" if states.offloaded else ""
    return f"{format_bytes(states.total)} on each process ({sizes}){offloaded}"


def lack_of_memory(states: StateBytes, world: World, processes: int) -> str | None:
    """Returns a message if the training state does not fit in free memory; None if it fits.

    Args:
        states: Bytes of one process.
        world: This process.
        processes: Number of processes on this machine; a GPU has one of them.
    """
    on_gpu = world.device.startswith("cuda")
    if on_gpu and states.offloaded * processes > (free := free_memory("cpu")):
        return (
            f"what is offloaded needs {format_bytes(states.offloaded)} of host RAM for each of {processes} "
            f"process(es) on this machine, but {format_bytes(free)} are free. Use a larger machine, 8-bit optimizer "
            'state (optimizer.name = "AdamW8bit"), or quantize frozen weights (converter FrozenBase)'
        )
    free, sharing = free_memory(world.device), 1 if on_gpu else processes
    if (states.total + states.offloaded * (not on_gpu)) * sharing <= free:
        return None
    where = f"the GPU {world.device}" if on_gpu else "this machine"
    times = f", which {sharing} processes share" if sharing > 1 else ""
    return (
        f"it needs {describe_states(states)}, before activations, but {format_bytes(free)} are free on "
        f"{where}{times}. Use more processes or a larger machine, 8-bit optimizer state "
        '(optimizer.name = "AdamW8bit"), weights in host RAM (model.config.parallelism.offload), or train less: '
        "adapters (model.config.lora_enabled = true), fewer weights (optimizer.keys_to_select), a smaller model"
    )


def require_memory(config: RunConfig, world: World) -> None:
    """Raises UserError on all ranks if the training state of a process does not fit in its free memory. Collective.

    It is called before memory is allocated, since the system kills processes without a message if memory runs out.
    """
    model: Model = config.model.config.build(device="meta")
    build_optimizer(config, model.network)
    states = run_states(config, model, world.size)
    lacks = world.gather(lack_of_memory(states, world, local_size()))
    lack = next((lack for lack in lacks if lack is not None), None)
    if lack is not None:
        raise UserError(f"[E114] the run does not fit into memory: {lack}")


def must_encode_first(*, states: int, encoders: int, memory: int) -> bool:
    """Returns whether a run with `trainer.encode_first` = "auto" encodes its samples before the network gets memory.

    It does if the encoders need more than a quarter of the memory that the training state leaves: the rest is for
    activations, whose size is not known at the start.

    Args:
        states: Bytes of the training state of a process.
        encoders: Bytes of VAE and text encoder together.
        memory: Free bytes of a GPU before the run.
    """
    return 4 * encoders > memory - states


def needs_encoding_first(config: RunConfig, world: World) -> bool:
    """Returns whether the encoders of a run may not fit next to its training step on the GPU of this process.

    Logs a warning if the run then cannot encode its samples first, or if the size of the encoders is not known.
    """
    task = task_of(config.model.name)
    if not world.device.startswith("cuda") or task.encoder_class is None:
        return False
    model: Model = config.model.config.build(device="meta")
    build_optimizer(config, model.network)
    states, free = run_states(config, model, world.size).total, free_memory(world.device)
    built = task(model=model, objective=config.objective, data=config.dataloader_train)
    try:
        encoders, why = encoder_bytes(built), why_not_encodable(config)
    except Exception as error:
        encoders, why = free, f"their size is not known; trainer.encode_first = 'always' loads them before it ({error})"
    needed = must_encode_first(states=states, encoders=encoders, memory=free)
    if needed and why and world.is_main:
        logger.warning("the encoders may not fit next to the training step on the GPU: %s", why)
    return needed and not why


def encoder_bytes(task: Task) -> int:
    """Returns the bytes of VAE and text encoder, which are built without memory.

    Raises:
        ValueError: If the model family states no encoders.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    task.model.device = "cpu"
    with FakeTensorMode(allow_non_fake_inputs=True):
        task.dummy_data.load_encoders()
        found = sum(tensor.nbytes for tensor in task.dummy_data.encoder_tensors())
    if not found:
        raise ValueError(f"{type(task.dummy_data).__name__} states none")
    return found


def check_space(config: RunConfig, model: Model, processes: int, folder: Path) -> list[str]:
    """Checks whether the checkpoints of a run fit on the disk.

    Args:
        config: Config of the run.
        model: Model whose trained parameters were selected.
        processes: Number of ranks.
        folder: Existing folder on the disk.

    Returns:
        A warning if they do not all fit; else empty.

    Raises:
        UserError: If not even one checkpoint fits.
    """
    needed, kept = checkpoint_size(config, model, processes), kept_checkpoints(config)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"[E115] a checkpoint of this run needs {format_bytes(needed)}, but the disk of {folder} has "
            f"{format_bytes(free)} free. Free disk space, choose another output root, or save less with "
            'checkpoint.save_weights = "trained"'
        )
    if kept * needed > free:
        fewer = "a smaller checkpoint.keep_latest_k" if config.checkpoint.keep_latest_k else "checkpoint.keep_latest_k"
        return [
            f"[E115] the run's {kept} checkpoints of {format_bytes(needed)} do not all fit: {format_bytes(free)} are "
            f"free on the disk of {folder}; set {fewer}, or a larger checkpoint.save_iter"
        ]
    return []
