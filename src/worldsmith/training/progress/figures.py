"""What is known of a step once it is done, for everything that shows or keeps it."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from worldsmith.distributed.gpus import gpu_of_device

if TYPE_CHECKING:
    from worldsmith.training.callbacks.base import TrainingRun
    from worldsmith.training.step import Step


def step_metrics(step: Step, trainer: TrainingRun) -> dict[str, Any]:
    """The figures of one step, over all ranks, which all ask for them; seconds and memory are this rank's."""
    rejected, loaded = data_counts(trainer)
    return {
        "loss": step.loss,
        **nested(step.figures),
        "lr": step.learning_rates[0],
        **rates_by_group(step, trainer),
        "grad_norm": step.gradient.norm if step.gradient else None,
        "samples": step.samples,
        "tokens": step.tokens,
        "tokens_per_second": step.tokens / step.seconds if step.seconds else None,
        "step_seconds": step.seconds,
        "data_seconds": step.data_seconds,
        "data_wait_share": step.data_seconds / step.seconds if step.seconds else None,
        **work_figures(step, trainer),
        **({"loss_scale": step.loss_scale} if trainer.config.model.config.precision == "float16" else {}),
        "skipped": step.skipped,
        "skipped_total": trainer.state.guard.skipped,
        "failed_saves": trainer.failed_saves,
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
        "memory_before_bytes": trainer.memory_before,
        "rejected": rejected,
        "loaded": loaded,
    }


def nested(figures: Mapping[str, float]) -> dict[str, Any]:
    """`{"name[key]": value}` as `{"name": {"key": value}}`."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        outer, _, key = name.removesuffix("]").partition("[")
        if key:
            found.setdefault(outer, {})[key] = value
        else:
            found[name] = value
    return found


def rates_by_group(step: Step, trainer: TrainingRun) -> dict[str, Any]:
    """The learning rate of each group, named by its factor on `optimizer.lr`; nothing where all have the same."""
    base, groups = trainer.config.optimizer.lr, trainer.state.optimizer.param_groups
    starts = [group.get("initial_lr", base) for group in groups]
    if len(set(starts)) == 1:
        return {}
    return {"lr_groups": {f"x{start / base:g}": rate for start, rate in zip(starts, step.learning_rates, strict=True)}}


def work_figures(step: Step, trainer: TrainingRun) -> dict[str, Any]:
    """How much of the step's work was padding, and of what the devices could do at most was the model's.

    `model_flops_share` is left out where the peak of the device, or the model's need, is not known.
    """
    task, world = trainer.task, trainer.world
    peak = peak_flops(world.device, trainer.config.model.config.precision)
    flops = [task.count_flops(batch) for batch in step.batches] if peak else []
    needed = sum(count for count in flops if count is not None)
    padding, total = world.data_sum(sum(map(task.padding, step.batches)), needed)
    figures = {"padding_share": padding / (padding + step.tokens) if step.tokens else None}
    if peak and total and step.seconds:
        figures["model_flops_share"] = total / (step.seconds * peak * world.size)
    return figures


def peak_flops(device: str, precision: str) -> float | None:
    """What the device can do at most in a second; None where that is not known."""
    if not device.startswith("cuda") or precision == "float32":
        return None
    import torch

    gpu = gpu_of_device(torch.cuda.get_device_name(device))
    return None if gpu is None else gpu.peak_flops


def data_counts(trainer: TrainingRun) -> tuple[dict[str, int], dict[str, int]]:
    """(samples that are left out, per reason; what the loader counts otherwise), over all ranks of this process."""
    loader, world = trainer.state.loader, trainer.world
    rejected = Counter(r.reason for r in loader.dataset.rejections)  # every rank has read the whole list
    loaded: Counter[str] = Counter()
    lost = Counter({**trainer.task.counts(), "quarantine_unwritten": loader.quarantine.unwritten})
    everyone = world.gather((dict(loader.quarantine.counts - rejected), dict(loader.counts), +lost))
    for rank, (left_out, counts, unwritten) in enumerate(everyone):
        loaded.update(unwritten)
        if rank % world.context_parallel == 0:
            rejected.update(left_out)
            loaded.update(counts)
    return dict(sorted(rejected.items())), dict(sorted(loaded.items()))


def peak_memory_bytes(device: str) -> int:
    """The most memory held so far: of the accelerator, or of this process."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
