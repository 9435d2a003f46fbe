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


BESIDE_STEPS = "on the GPU during a step, until all latents are cached"


def encoded_first(work: StepWork, *, in_run: bool) -> str:
    """Returns the text of the plan's assumption that no encoder is on the GPU during training.

    Args:
        work: Simulated step, with the memory of encoding.
        in_run: Whether the run fills the latent cache in its first phase; False: `worldsmith encode` does before it.
    """
    needed = CONTEXT + (1 + FRAGMENTATION) * (work.encoding.peak if work.encoding else 0)
    who = "the run fills the latent cache before the network gets memory, for at most one epoch"
    who = who if in_run else "`worldsmith encode` fills the latent cache before the run, for all epochs"
    return f"not on the GPU: {who}, and needs {needed / GIB:.1f} GiB of GPU memory"


def assumptions(
    config: Trainer.Config,
    gpu: Gpu,
    ranks: int,
    data: PlannedBatches,
    *,
    timed: bool,
    copies: bool = False,
    encoders: str = "",
    open_variables: Sequence[str] = (),
    substitutes: Sequence[str] = (),
) -> dict[str, str]:
    """Returns the assumptions of a plan as texts by topic, such as "data", "margins" or "speed".

    Args:
        config: Config of the run.
        gpu: GPU of each rank.
        ranks: Number of ranks.
        data: Batches that were simulated for the plan.
        timed: Whether the plan has time estimates; adds their assumptions.
        copies: Whether a step copies offloaded tensors between GPU and host RAM.
        encoders: Text that states where the encoders are during training; "": no such assumption.
        open_variables: Environment variables that the config names and that are not set.
        substitutes: Texts on pretrained components that are not available and were substituted.
    """
    compiled, loop = config.model.config.compile.enabled, config.trainer
    found = {"data": data.described}
    if data.cache_bytes and data.num_samples is None:
        size = f"{data.cache_bytes / 2**20:.2g} MiB"
        found["latent cache"] = f"{size} per sample, not counted: the number of samples is unknown"
    if encoders:
        found["encoders"] = encoders
    if open_variables:
        files, variables = ("its file", "it") if len(open_variables) == 1 else ("their files", "them")
        why = f"{files} could not be read; export {variables} to plan with the real values"
        found["not set"] = f"{', '.join(open_variables)}: {why}"
    if substitutes:
        found["substituted"] = "; ".join(substitutes)
    found["margins"] = (
        f"CUDA context {CONTEXT / GIB:g} GiB, {FRAGMENTATION:.0%} of the tensors' peak lost to fragmentation"
    )
    if ranks > 1:
        found["margins"] += f", buffers of collectives {COMMUNICATION / GIB:g} GiB"
    used = min(ranks, gpu.per_machine)
    found["machine"] = (
        f"{used} GPU{'s' * (used > 1)}; host RAM: {PROCESS / GIB:g} GiB per process, {WORKER / GIB:g} GiB per data "
        "loader worker"
    )
    if compiled:
        found["compiling"] = "layers were simulated uncompiled; compiled layers keep fewer activations"
    if not timed:
        return found
    products, attention = (EFFICIENCIES[name][0] * gpu.reached for name in ("matmuls", "attention"))
    found["speed"] = (
        f"{format_percents(products)} of {gpu.peak_flops / 1000000000000.0:g} TFLOP/s in matmuls, "
        f"{format_percents(attention)} in attention; {format_percents(EFFICIENCIES['memory'][0])} of "
        f"{gpu.bandwidth / 1000000000000.0:g} TB/s in other operators"
    )
    if compiled:
        found["speed"] += f", whose bytes compiling reduces to {format_percents(EFFICIENCIES['unfused'][0])}"
    if ranks > 1:
        links = f"{gpu.link / 1e9:g} GB/s per direction between GPUs of a machine"
        if ranks > gpu.per_machine:
            links += f", {gpu.network / 1000000000.0:g} GB/s per GPU between machines"
            links += (
                f"; latency {HOP * 1000000.0:g} us per hop in a machine, {NETWORK_HOP * 1000000.0:g} us between "
                "machines, over a tree (fast) or a ring (slow)"
            )
        found["links"] = (
            f"{format_percents(EFFICIENCIES['links'][0])} of {links}; overlapped with computation (fast) or not (slow)"
        )
    if copies:
        found["copies"] = (
            f"{format_percents(EFFICIENCIES['copies'][0])} of {gpu.host_link / 1e9:g} GB/s per direction to page-locked"
            " host RAM; copies of weights overlap with computation (fast) or not (slow), those of activations never"
        )
    disk = EFFICIENCIES["disk"][0]
    found["saves"] = f"written at {disk.fast / 1000000000.0:g} to {disk.slow / 1000000000.0:g} GB/s in total"
    if loop.run_validation:
        counted = f"a batch takes {format_percents(FORWARD)} of the time of a training batch"
        found["validation"] = "not counted: the number of batches is unknown" if loop.max_val_iter is None else counted
    found["not counted"] = "waiting for data, kernel launches, loading weights, generating samples"
    return found


def format_percents(fractions: EstimateRange) -> str:
    """Formats a range of fractions as percentages, such as "75 to 45 %"."""
    return f"{100 * fractions.fast:.0f} to {100 * fractions.slow:.0f} %"
