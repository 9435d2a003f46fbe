"""`--dryrun`: everything that happens before the first step, short of allocating the network and starting the run."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.warm_start import plan_loading
from worldsmith.distributed.degrees import fit_degrees
from worldsmith.monitor.terminal_view import short_number
from worldsmith.training.preflight import generator_config, require_writable, schedule_remarks

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.models.cosmos3.generator import Cosmos3Generator
    from worldsmith.training.trainer import Trainer

BYTES = 4  # weights, average and optimizer state are float32


def plan_run(config: Trainer.Config, run_folder: Path, *, world_size: int) -> list[str]:
    """The lines of the plan. Raises what the run itself would raise before its first step."""
    model = generator_config(config)
    generator: Cosmos3Generator = model.build(device="meta")
    parallelism = model.parallelism
    degrees = fit_degrees(
        parallelism.data_parallel_shard_degree, parallelism.data_parallel_replicate_degree, world_size
    )
    return [
        f"run folder   {run_folder}{describe_start(config, run_folder)}",
        f"processes    {world_size} (replicate {degrees.replicate} × shard {degrees.shard})",
        *network_lines(config, generator.network, run_folder),
        *data_lines(config, generator),
        *(f"note         {remark}" for remark in schedule_remarks(config)),
    ]


def describe_start(config: Trainer.Config, run_folder: Path) -> str:
    require_writable(run_folder)
    pointer = run_folder / "checkpoints" / "latest_checkpoint.txt"
    if pointer.exists():
        return f" (goes on from {pointer.read_text(encoding='utf-8').strip()})"
    return f" (new, {'random weights' if config.checkpoint.load_path is None else config.checkpoint.load_path})"


def network_lines(config: Trainer.Config, network: nn.Module, run_folder: Path) -> list[str]:
    """Parameters, what is loaded into them, and the size of a checkpoint against the free space."""
    shapes = {name: list(parameter.shape) for name, parameter in network.named_parameters()}
    settings = copy.deepcopy(config.optimizer)
    settings.fused = False  # there is no fused kernel for a network without memory
    trained = settings.build(network=network).parameters
    total, moving = sum(p.numel() for p in network.parameters()), sum(p.numel() for p in trained)
    average = generator_config(config).ema.enabled
    checkpoint = BYTES * (total * (2 if average else 1) + 2 * moving)
    saves = -(-config.trainer.max_iter // config.checkpoint.save_iter)
    kept = min(saves, config.checkpoint.keep_latest_k or saves)
    free = shutil.disk_usage(run_folder).free
    lines = [
        f"network      {short_number(total)} parameters, {short_number(moving)} trained"
        f"{', with a running average' if average else ''}",
        f"checkpoint   {size(checkpoint)} each, {kept} kept = {size(kept * checkpoint)}; free: {size(free)}",
    ]
    if kept * checkpoint > free:
        lines.append("note         the checkpoints do not fit on the disk; set checkpoint.keep_latest_k")
    if config.checkpoint.load_path is not None:
        wanted = {f"net.{name}": shape for name, shape in shapes.items()}
        wanted |= {f"net_ema.{name}": shape for name, shape in shapes.items()} if average else {}
        report = plan_loading(config.checkpoint.load_path, wanted, config.checkpoint.keys_to_skip_loading)
        lines += [f"weights      {line}" for line in report.lines()]
    return lines


def data_lines(config: Trainer.Config, generator: Cosmos3Generator) -> list[str]:
    """What the data set holds, and one pack that was really read, tokenised and (if need be) encoded."""
    from worldsmith.data.summary import summarize

    settings = copy.deepcopy(config.dataloader_train)
    settings.num_workers, settings.latent_cache = 0, ""
    loader = settings.build(tokenizer=generator.tokenize)
    pack = next(iter(loader))
    tokens = sum(sample.num_tokens for sample in pack)
    vae = generator_config(config).tokenizer.build(device="cpu")
    latents = vae.encode(pack[0].video)
    steps = config.trainer.max_iter * config.trainer.grad_accum_iter
    return [
        f"data         {summarize(loader.dataset)}",
        f"first pack   {len(pack)} samples, {tokens} tokens; {pack[0].key} has latents {list(latents.shape)}",
        f"run          {config.trainer.max_iter} steps × {config.trainer.grad_accum_iter} packs, "
        f"about {short_number(steps * len(pack))} samples and {short_number(steps * tokens)} tokens on each process",
    ]


def size(count: int) -> str:
    """Bytes for people: 12.3 MiB, 4.56 GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
