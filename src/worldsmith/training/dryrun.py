"""`--dryrun`: everything that happens before the first step, short of allocating the network and starting the run."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.warm_start import plan_loading
from worldsmith.config.errors import UserError
from worldsmith.models.cosmos3.attention_modes import describe_modes
from worldsmith.models.parameter_names import native_parameters
from worldsmith.monitor.terminal_view import short_number
from worldsmith.training.parallel import plan_degrees
from worldsmith.training.preflight import (
    BYTES,
    check_space,
    checkpoint_bytes,
    count_weights,
    generator_config,
    kept_checkpoints,
    require_writable,
    schedule_remarks,
    size,
)

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.config.degrees import Degrees
    from worldsmith.models.cosmos3.generator import Cosmos3Generator
    from worldsmith.training.trainer import Trainer


def plan_run(config: Trainer.Config, run_folder: Path, *, world_size: int) -> Iterator[str]:
    """The lines of the plan, as they become known. Raises what the run itself would raise before its first step.

    A disk that is too small is told at the end: the machine that plans a run is often not the one that trains it.
    """
    model = generator_config(config)
    degrees = plan_degrees(model, world_size)
    generator: Cosmos3Generator = model.build(device="meta")
    yield f"run folder   {run_folder}{describe_start(config, run_folder)}"
    yield f"processes    {world_size} ({degrees})"
    yield f"attention    {describe_modes(generator.network.attention)}"
    yield from network_lines(config, generator.network, run_folder)
    yield memory_line(config, generator.network, degrees)
    too_small = None
    try:
        yield from (f"note         {remark}" for remark in check_space(config, generator.network, run_folder))
    except UserError as error:
        too_small = error
    yield from weight_lines(config, generator.network)
    yield from data_lines(config, generator)
    yield from (f"note         {remark}" for remark in schedule_remarks(config))
    if too_small is not None:
        raise too_small


def describe_start(config: Trainer.Config, run_folder: Path) -> str:
    require_writable(run_folder)
    pointer = run_folder / "checkpoints" / "latest_checkpoint.txt"
    if pointer.exists():
        return f" (goes on from {pointer.read_text(encoding='utf-8').strip()})"
    return f" (new, {'random weights' if config.checkpoint.load_path is None else config.checkpoint.load_path})"


def network_lines(config: Trainer.Config, network: nn.Module, run_folder: Path) -> list[str]:
    """Parameters, and the size of a checkpoint against the free space. Freezes what the run does not train."""
    settings = copy.deepcopy(config.optimizer)
    settings.fused = False  # there is no fused kernel for a network without memory
    settings.build(network=network)
    total, moving = count_weights(network)
    average = generator_config(config).ema.enabled
    checkpoint, kept = checkpoint_bytes(config, network), kept_checkpoints(config)
    return [
        f"network      {short_number(total)} parameters, {short_number(moving)} trained"
        f"{', with a running average' if average else ''}",
        f"checkpoint   {size(checkpoint)} each, at most {kept} at once = {size(kept * checkpoint)}; "
        f"free: {size(shutil.disk_usage(run_folder).free)}",
    ]


def memory_line(config: Trainer.Config, network: nn.Module, degrees: Degrees) -> str:
    """What each process holds between two steps, and during accumulation; what is trained must have been chosen."""
    model, shares = generator_config(config), degrees.weights
    total, trained = count_weights(network)
    frozen_bytes = 2 if model.parallelism.fsdp_master_dtype == "bfloat16" else 4
    trained_bytes = 4 if model.lora_enabled else frozen_bytes  # adapters stay float32
    waits = config.trainer.grad_accum_iter > 1 and not model.parallelism.reduce_every_pack
    parts = {
        "weights": (frozen_bytes * (total - trained) + trained_bytes * trained) // shares,
        "gradients": BYTES * trained if waits else trained_bytes * trained // shares,
        "moments": 2 * trained_bytes * trained // shares,
    }
    if model.ema.enabled:
        parts["average"] = BYTES * (trained if model.ema.trainable_only else total) // shares
    sizes = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
    return f"memory       {size(sum(parts.values()))} on each process ({sizes}), before activations"


def weight_lines(config: Trainer.Config, network: nn.Module) -> list[str]:
    """What would be loaded: names and shapes are compared, no tensor is read."""
    if config.checkpoint.load_path is None:
        return []
    shapes = {name: list(parameter.shape) for name, parameter in native_parameters(network).items()}
    wanted = {f"net.{name}": shape for name, shape in shapes.items()}
    if generator_config(config).ema.enabled:
        wanted |= {f"net_ema.{name}": shape for name, shape in shapes.items()}
    report = plan_loading(
        config.checkpoint.load_path,
        wanted,
        config.checkpoint.keys_to_skip_loading,
        network=generator_config(config).network,
        average_as_live=config.checkpoint.load_ema_to_reg,
    )
    return [f"weights      {line}" for line in report.lines()]


def data_lines(config: Trainer.Config, generator: Cosmos3Generator) -> list[str]:
    """What the data set holds, and one pack that was really read and tokenised; the VAE encodes the first frames."""
    from worldsmith.data.summary import summarize

    settings = copy.deepcopy(config.dataloader_train)
    settings.num_workers, settings.latent_cache = 0, ""
    loader = settings.build(tokenizer=generator.tokenize)
    pack = next(iter(loader))
    tokens = sum(sample.num_tokens for sample in pack)
    tokenizer = copy.deepcopy(generator_config(config).tokenizer)
    tokenizer.precision = "float32"  # on many processors far quicker than bfloat16
    latents = tokenizer.build(device="cpu").encode(pack[0].video[:, :5])
    shape = [latents.shape[0], pack[0].latent_shape[0], *latents.shape[2:]]
    steps = config.trainer.max_iter * config.trainer.grad_accum_iter
    return [
        f"data         {summarize(loader.dataset, max_tokens=loader.config.max_sequence_length)}",
        f"first pack   {len(pack)} samples, {tokens} tokens; {pack[0].key} has latents {shape}",
        f"run          {config.trainer.max_iter} steps × {config.trainer.grad_accum_iter} packs, "
        f"about {short_number(steps * len(pack))} samples and {short_number(steps * tokens)} tokens on each process",
    ]
