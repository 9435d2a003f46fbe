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


def host_memory(
    config: Trainer.Config, degrees: Degrees, *, per_machine: int, staged: int, loaded: int = 0, sample_bytes: int
) -> Parts:
    """Of a machine with so many GPUs at most, when it needs most.

    A rank copies `staged` bytes for a save, those of each replica, and has `loaded` bytes of weights on their way to
    its GPU at the start, when no reader runs. A sample that is held ready takes `sample_bytes`.
    """
    here, loader = min(per_machine, degrees.data * degrees.context), config.dataloader_train
    readers = here * loader.num_workers * (WORKER + loader.prefetch_factor * sample_bytes)
    starting = {"weights on their way": here * loaded}
    running = {"copies for saves": here * staged, "readers": readers}
    most = max(running, starting, key=lambda parts: sum(parts.values()))
    return Parts({name: count for name, count in {"processes": here * PROCESS, **most}.items() if count})


def disk(config: Trainer.Config, *, checkpoint_bytes: int, cached_bytes: int) -> Parts:
    """When most is there; `cached_bytes` are those of the latent cache, once all samples are in it."""
    parts = {"checkpoints": kept_checkpoints(config) * checkpoint_bytes, "latent cache": cached_bytes}
    return Parts({name: count for name, count in parts.items() if count})
