"""Start-up of a run: builds its components from the config, encodes its samples, and starts or resumes it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.distributed.attention_kernels import activate_flash_attention
from worldsmith.distributed.memory import held_memory
from worldsmith.distributed.world import World
from worldsmith.files.locks import release_leases
from worldsmith.models.model import Model
from worldsmith.tasks.encode_samples import encode_samples, sample_encoders
from worldsmith.tasks.registry import task_of
from worldsmith.tasks.task import Task
from worldsmith.training.callbacks.base import Callback
from worldsmith.training.parallel import allocate_network, build_without_memory, prepare_process
from worldsmith.training.preflight import check_space, needs_encoding_first, schedule_remarks
from worldsmith.training.run_config import RunConfig
from worldsmith.training.run_state import RunState
from worldsmith.training.start_checks import require_same_dataset
from worldsmith.training.validation import Validator

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
    config: RunConfig,
    checkpointer: Checkpointer,
    run_folder: Path,
    checkpoint: Path | None,
    changes: Sequence[str],
    *,
    resume_changed: bool,
) -> RunComponents:
    """Builds a run and starts or resumes it. Collective.

    Args:
        config: Resolved config.
        checkpointer: Checkpointer of the run, with its ranks.
        run_folder: Run folder.
        checkpoint: Checkpoint to resume from; None: a new run.
        changes: Settings that differ from those of the checkpoint, for messages.
        resume_changed: Whether the data may differ from those of the checkpoint.

    Raises:
        UserError: If the run does not fit the checkpoint, the disk or the data, or if ranks differ.
    """
    world = checkpointer.world
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
    model = build_without_memory(config.model.config, world)
    is_encoded = encode_first(config, model, world)
    allocate_network(model, world)
    build_task = partial(
        task_of(config.model.name), model=model, objective=config.objective, world=world, run_folder=run_folder
    )
    task: Task = build_task(data=config.dataloader_train)
    loader = task.loader()
    if is_encoded:
        task.expect_cached()
    state = RunState(config, model=model, loader=loader, checkpointer=checkpointer, run_folder=run_folder)
    require_same_dataset(world, loader.dataset)
    validator = None
    if config.trainer.run_validation:
        assert config.dataloader_val is not None  # else RunConfig.check refuses it
        validation_task = build_task(data=config.dataloader_val, split="val")
        validator = Validator(validation_task, max_packs=config.trainer.max_val_iter)
        if is_encoded:
            validation_task.expect_cached()
        require_same_dataset(world, validator.loader.dataset)
    callbacks = {name: callback.build(folder=run_folder / name) for name, callback in config.trainer.callbacks.items()}
    return RunComponents(model, task, state, validator, callbacks, memory_before)


def encode_first(config: RunConfig, model: Model, world: World) -> bool:
    """Encodes the samples of a run, of at most one epoch, before the network gets memory, if needed. Collective.

    Args:
        config: Config of the run.
        model: Model of the run, on the meta device. It keeps its encoders, without weights.
        world: This process.

    Returns:
        Whether the samples were encoded.

    Raises:
        UserError: If samples cannot be written to the latent cache.
    """
    import torch

    from worldsmith.checkpoint.run.rng_state import untouched_rng

    loop, mode = config.trainer, config.trainer.encode_first
    if mode == "never" or (mode == "auto" and not world.any(needs_encoding_first(config, world))):
        return False
    level = logging.INFO if world.is_main else logging.DEBUG
    logger.log(level, "encoding     before the network gets memory (trainer.encode_first = '%s')", mode)

    def show(done: int, total: int) -> None:
        if total and 20 * done // total > 20 * (done - 1) // total:
            logger.log(level, "encoding     %d of %d samples of this process", done, total)

    packs = {"train": loop.max_iter * loop.grad_accum_iter, "val": loop.max_val_iter}
    with untouched_rng():
        found = encode_samples(sample_encoders(config, model, replace(world, context_group=None)), 1, show, packs)
    gc.collect()
    torch.cuda.empty_cache()
    counts = world.sum(found.encoded, found.found, found.left_out)
    logger.log(level, "encoding     %d samples encoded, %d already cached, %d skipped", *counts)
    return True
