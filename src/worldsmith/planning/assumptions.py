"""Lists the assumptions of a plan with their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from worldsmith.distributed.gpus import GIB, Gpu
from worldsmith.planning.estimate_memory import COMMUNICATION, CONTEXT, FRAGMENTATION, PROCESS, WORKER
from worldsmith.planning.estimate_time import EFFICIENCIES, FORWARD, HOP, NETWORK_HOP, EstimateRange

if TYPE_CHECKING:
    from worldsmith.planning.simulation_inputs import PlannedBatches
    from worldsmith.planning.work import StepWork
    from worldsmith.training.trainer import Trainer


BESIDE_STEPS = "on the GPU beside a step, as they are until steps find everything in the latent cache"


def encoded_first(work: StepWork) -> str:
    """Returns the assumption on encoders for a run whose latent cache is complete before it starts."""
    needed = CONTEXT + (1 + FRAGMENTATION) * work.encode_bytes
    return (
        "not on the GPU: `worldsmith encode` fills the latent cache before the run, for all epochs, and needs "
        f"{needed / GIB:.1f} GiB of a GPU"
    )


def assumptions(
    config: Trainer.Config,
    gpu: Gpu,
    ranks: int,
    data: PlannedBatches,
    *,
    timed: bool,
    encoders: str = "",
    open_variables: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> dict[str, str]:
    """Returns the assumptions of a plan as texts by topic.

    Args:
        config: Config of the run.
        gpu: GPU of each rank.
        ranks: Number of ranks.
        data: Batches for which the plan was made.
        timed: Whether the plan has time estimates; adds their assumptions.
        encoders: Where the encoders are during training; "" if this does not matter.
        open_variables: Environment variables that the config names and that are not set.
        parts: Substitutes of pretrained components that are not available.
    """
    compiled, loop = config.model.config.compile.enabled, config.trainer
    found = {"data": data.described}
    if data.cache_bytes and data.num_samples is None:
        size = f"{data.cache_bytes / 2**20:.2g} MiB"
        found["latent cache"] = f"{size} for each sample, not counted: how many samples there are is not known"
    if encoders:
        found["encoders"] = encoders
    if open_variables:
        named, them = ("it names", "it") if len(open_variables) == 1 else ("they name", "them")
        why = f"what {named} was not looked at; export {them} to plan with that"
        found["not set"] = f"{', '.join(open_variables)}: {why}"
    if parts:
        found["not at hand"] = "; ".join(parts)
    found["margins"] = (
        f"the driver's context {CONTEXT / GIB:g} GiB, {FRAGMENTATION:.0%} of the tensors' peak in pieces that nothing "
        "fits into"
    )
    if ranks > 1:
        found["margins"] += f", buffers of collectives {COMMUNICATION / GIB:g} GiB"
    used = min(ranks, gpu.per_machine)
    found["machine"] = (
        f"{used} GPU{'s' * (used > 1)}; main memory of a process {PROCESS / GIB:g} GiB, a reader {WORKER / GIB:g} GiB"
    )
    if compiled:
        found["compiling"] = "layers were carried out uncompiled; compiled ones hold fewer activations"
    if not timed:
        return found
    products, attention = (EFFICIENCIES[name][0] * gpu.reached for name in ("matrix products", "attention"))
    found["speed"] = (
        f"{format_percents(products)} of {gpu.peak_flops / 1e12:g} TFLOP/s in matrix products, "
        f"{format_percents(attention)} in attention; "
        f"{format_percents(EFFICIENCIES['memory'][0])} of {gpu.bandwidth / 1e12:g} TB/s elsewhere"
    )
    if compiled:
        found["speed"] += f", for {format_percents(EFFICIENCIES['unfused'][0])} of the bytes, since layers are compiled"
    if ranks > 1:
        links = f"{gpu.link / 1e9:g} GB/s one way between GPUs of a machine"
        if ranks > gpu.per_machine:
            links += f", {gpu.network / 1e9:g} GB/s between machines for each GPU"
            links += f"; {HOP * 1e6:g} us for a hop, {NETWORK_HOP * 1e6:g} us between machines, by a tree or a ring"
        found["links"] = (
            f"{format_percents(EFFICIENCIES['links'][0])} of {links}; fast: hidden behind computation, slow: not"
        )
    disk = EFFICIENCIES["disk"][0]
    found["saves"] = f"written at {disk.fast / 1e9:g} to {disk.slow / 1e9:g} GB/s in all"
    if loop.run_validation:
        counted = f"a pack takes {format_percents(FORWARD)} of the time of one of training"
        found["validation"] = (
            "not counted: how many packs there are is not known" if loop.max_val_iter is None else counted
        )
    found["not counted"] = "waiting for data, starting kernels, loading weights, drawing samples"
    return found


def format_percents(of: EstimateRange) -> str:
    """Formats a range of fractions as percentages, such as "75 to 45 %"."""
    return f"{100 * of.fast:.0f} to {100 * of.slow:.0f} %"
