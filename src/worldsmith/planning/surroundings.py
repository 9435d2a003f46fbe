"""What a run needs beside its GPUs: memory of its machines, and disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.config.tree.degrees import Degrees
from worldsmith.distributed.gpus import GIB
from worldsmith.training.preflight import kept_checkpoints

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

PROCESS = 3 * GIB
"""Assumed: main memory of a training process with its libraries."""
WORKER = int(0.5 * GIB)
"""Assumed: main memory of a process that reads data, before what it holds ready."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes by what takes them."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        return {"total_bytes": self.total, "parts": dict(self.parts)}


def staged_bytes(checkpoint_bytes: int, degrees: Degrees) -> int:
    """What a rank of the replica that writes holds of a checkpoint."""
    return -(-checkpoint_bytes // degrees.weights)


def host_memory(
    config: Trainer.Config, degrees: Degrees, *, per_machine: int, checkpoint_bytes: int, sample_bytes: int
) -> Parts:
    """Of the machine that needs most, with so many GPUs at most; a sample that is held ready takes `sample_bytes`."""
    here, loader = min(per_machine, degrees.data * degrees.context), config.dataloader_train
    workers = here * loader.num_workers
    writing = min(here, degrees.weights)
    parts = {
        "processes": here * PROCESS,
        "copies for saves": writing * staged_bytes(checkpoint_bytes, degrees) if config.checkpoint.async_save else 0,
        "readers": workers * (WORKER + loader.prefetch_factor * sample_bytes),
    }
    return Parts({name: count for name, count in parts.items() if count})


def disk(config: Trainer.Config, *, checkpoint_bytes: int, cached_bytes: int) -> Parts:
    """When most is there; `cached_bytes` are those of the latent cache, once all samples are in it."""
    parts = {"checkpoints": kept_checkpoints(config) * checkpoint_bytes, "latent cache": cached_bytes}
    return Parts({name: count for name, count in parts.items() if count})
