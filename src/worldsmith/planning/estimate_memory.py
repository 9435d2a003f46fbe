"""Bytes that a run needs: of a GPU and whether they fit, of its machines, and of disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.gpus import GIB, Gpu, holding
from worldsmith.planning.work import BEFORE, PhaseMemory, StepWork
from worldsmith.training.preflight import kept_checkpoints

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

CONTEXT = int(0.8 * GIB)
"""Assumed: what the driver, the kernels and the workspaces of matrix products take in a process."""
COMMUNICATION = int(0.5 * GIB)
"""Assumed: buffers of the collectives' library, where there is more than one rank."""
FRAGMENTATION = 0.05
"""Assumed: share of the tensors' peak that the allocator holds beside them, in pieces that nothing fits into."""


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Bytes of one GPU."""

    gpu: Gpu
    peak: int
    """Of tensors."""
    ranks: int
    encoders: int = 0
    """Of tensors that are beside the peak while the latent cache is filled."""

    @property
    def context(self) -> int:
        return CONTEXT

    @property
    def communication(self) -> int:
        return COMMUNICATION if self.ranks > 1 else 0

    @property
    def fragmentation(self) -> int:
        return int(FRAGMENTATION * (self.peak + self.encoders))

    @property
    def needed(self) -> int:
        """Peak and margins."""
        return self.peak + self.encoders + self.context + self.communication + self.fragmentation

    @property
    def spare(self) -> int:
        """What is left of the GPU; what is lacking where it is negative."""
        return self.gpu.memory - self.needed

    @property
    def word(self) -> Literal["fits", "tight", "does not fit"]:
        """tight: it fits only as long as the allocator holds less in pieces than is assumed."""
        if self.spare >= 0:
            return "fits"
        return "tight" if self.spare + self.fragmentation >= 0 else "does not fit"

    @property
    def holders(self) -> list[str]:
        """GPUs that hold as much, the smallest first."""
        return [gpu.name for gpu in holding(self.needed)]

    def to_json(self) -> dict[str, Any]:
        parts = ("peak", "encoders", "context", "communication", "fragmentation", "needed", "spare")
        return {
            "verdict": self.word,
            "gpu_bytes": self.gpu.memory,
            **{f"{name}_bytes": getattr(self, name) for name in parts},
            "held_by": self.holders,
        }


def memory_verdict(work: StepWork, gpu: Gpu, *, encoded: bool = False) -> MemoryVerdict:
    """Whether the worst moment of a run fits. `encoded`: the latent cache is complete before the run."""
    if encoded:
        work = replace(work, phases=[phase for phase in work.phases if phase.name != "encoding"])
    worst, encoders = worst_phase(work)
    return MemoryVerdict(gpu, worst.peak, work.ranks, encoders)


def worst_phase(work: StepWork) -> tuple[PhaseMemory, int]:
    """The phase that needs most, and bytes of encoders beside it.

    Where steps find all in a cache, encoders that encoded or drew a sample stay on the device until so many steps have
    not needed them that they are put away.
    """
    users = [phase for phase in work.phases if phase.name in ("encoding", "sampling")]
    encoders = max((phase.kinds.get("encoders", 0) for phase in users), default=0)

    def beside(phase: PhaseMemory) -> int:
        return 0 if phase.name in BEFORE else max(0, encoders - phase.kinds.get("encoders", 0))

    worst = max(work.phases, key=lambda phase: phase.peak + beside(phase))
    return worst, beside(worst)


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
