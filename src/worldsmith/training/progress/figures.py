"""What is known of a step once it is done, for everything that shows or keeps it."""

from __future__ import annotations

import resource
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldsmith.training.step import Step
    from worldsmith.training.trainer import Trainer


def step_metrics(step: Step, trainer: Trainer) -> dict[str, Any]:
    """The figures of one step, over all ranks; seconds and memory are this rank's."""
    return {
        "loss": step.loss,
        **step.figures,
        "lr": step.learning_rate,
        "grad_norm": step.gradient.norm if step.gradient else None,
        "samples": step.samples,
        "tokens": step.tokens,
        "tokens_per_second": step.tokens / step.seconds if step.seconds else None,
        "step_seconds": step.seconds,
        "data_seconds": step.data_seconds,
        "skipped": step.skipped,
        "skipped_total": trainer.state.guard.skipped,
        "failed_saves": trainer.failed_saves,
        "peak_memory_bytes": peak_memory_bytes(trainer.world.device),
    }


def data_counts(trainer: Trainer) -> tuple[dict[str, int], dict[str, int]]:
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
