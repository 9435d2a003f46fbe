"""Estimates the GPU memory, host RAM and disk space of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.gpus import GIB, Gpu, holding
from worldsmith.planning.work import BEFORE, PhaseMemory, StepWork
from worldsmith.training.preflight import kept_checkpoints, must_encode_first
from worldsmith.training.run_config import why_not_encodable

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

CONTEXT = int(0.8 * GIB)
"""Assumed bytes of the CUDA context, loaded kernels and matmul workspaces of a process."""
COMMUNICATION = int(0.5 * GIB)
"""Assumed bytes of NCCL's buffers, if the run has more than one rank."""
FRAGMENTATION = 0.05
"""Assumed memory lost to fragmentation in the caching allocator, as a fraction of the tensors' peak."""


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Comparison of the memory that a run needs on each GPU, in bytes, with the memory of the GPU."""

    gpu: Gpu
    peak: int
    """Peak bytes of tensors in the phase that needs the most GPU memory."""
    ranks: int
    encoders: int = 0
    """Bytes of encoders that an earlier phase left on the GPU, in addition to the peak."""

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
        """Required bytes: tensors, encoders, CUDA context, buffers of collectives and fragmentation."""
        return self.peak + self.encoders + self.context + self.communication + self.fragmentation

    @property
    def spare(self) -> int:
        """Free GPU memory in bytes; negative if the run does not fit."""
        return self.gpu.memory - self.needed

    @property
    def word(self) -> Literal["fits", "tight", "does not fit"]:
        """Verdict; "tight" means that the run fits only if fragmentation is lower than assumed."""
        if self.spare >= 0:
            return "fits"
        return "tight" if self.spare + self.fragmentation >= 0 else "does not fit"

    @property
    def holders(self) -> list[str]:
        """Names of all known GPU models with at least `needed` bytes of memory, smallest first."""
        return [gpu.name for gpu in holding(self.needed)]

    def to_json(self) -> dict[str, Any]:
        parts = ("peak", "encoders", "context", "communication", "fragmentation", "needed", "spare")
        return {
            "verdict": self.word,
            "gpu_bytes": self.gpu.memory,
            **{f"{name}_bytes": getattr(self, name) for name in parts},
            "held_by": self.holders,
        }


def plan_encoding(
    config: Trainer.Config, work: StepWork, gpu: Gpu, *, states: int, encoded: bool = False
) -> tuple[StepWork, bool]:
    """Decides as the run itself whether it encodes its samples before the network gets memory (`trainer.encode_first`).

    Args:
        config: Config of the run.
        work: Simulated step and other phases of one rank.
        gpu: GPU of each rank.
        states: Bytes of the training state of a rank.
        encoded: Whether the latent cache is complete before the run.

    Returns:
        (`work` with the phases that encode in this run, whether the run encodes first).
    """
    others = [phase for phase in work.phases if phase.name != "encoding"]
    encoders = sum(phase.kinds.get("encoders", 0) for phase in work.phases if phase.name == "encoding")
    mode = "never" if encoded or why_not_encodable(config) or work.encoding is None else config.trainer.encode_first
    needed = mode == "auto" and must_encode_first(states=states, encoders=encoders, memory=gpu.memory - CONTEXT)
    if (first := mode == "always" or needed) or encoded:
        work = replace(work, phases=[*([work.encoding] if first and work.encoding else []), *others])
    return work, first


def memory_verdict(work: StepWork, gpu: Gpu) -> MemoryVerdict:
    """Compares the memory of a GPU with the phase that needs the most memory.

    Args:
        work: Simulated step and other phases of one rank.
        gpu: GPU of each rank.
    """
    worst, encoders = worst_phase(work)
    return MemoryVerdict(gpu, worst.peak, work.ranks, encoders)


def worst_phase(work: StepWork) -> tuple[PhaseMemory, int]:
    """Returns the phase with the largest peak and the bytes of encoders that are on the GPU in addition to it.

    Encoders stay on the GPU after they were used for encoding or sample generation, until they have been unused for a
    number of steps.
    """
    users = [phase for phase in work.phases if phase.name in ("encoding", "sampling")]
    encoders = max((phase.kinds.get("encoders", 0) for phase in users), default=0)

    def unused_encoders(phase: PhaseMemory) -> int:
        return 0 if phase.name in BEFORE else max(0, encoders - phase.kinds.get("encoders", 0))

    worst = max(work.phases, key=lambda phase: phase.peak + unused_encoders(phase))
    return worst, unused_encoders(worst)


PROCESS = 3 * GIB
"""Assumed host RAM of a training process with its libraries, in bytes."""
WORKER = int(0.5 * GIB)
"""Assumed host RAM of a data loader worker without its prefetched samples, in bytes."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Breakdown of host RAM or disk space: bytes by purpose."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        return {"total_bytes": self.total, "parts": dict(self.parts)}


def host_memory(
    config: Trainer.Config,
    degrees: Degrees,
    *,
    per_machine: int,
    staged: int,
    loaded: int = 0,
    offloaded: int = 0,
    activations: int = 0,
    sample_bytes: int,
) -> Parts:
    """Estimates the peak host RAM of one machine: while weights are loaded or in training, whichever is larger.

    Args:
        config: Config of the run.
        degrees: Parallelism degrees of the run.
        per_machine: Max number of GPUs (ranks) per machine.
        staged: Bytes that a rank copies to host RAM for a save.
        loaded: Bytes of weights in host RAM of a rank while it loads them, before data loader workers start.
        offloaded: Bytes of offloaded weights of a rank, which are in host RAM all the time, and of their gradients and
            optimizer state.
        activations: Bytes of the activations of a rank in host RAM.
        sample_bytes: Bytes of one prefetched sample.
    """
    here, loader = min(per_machine, degrees.data * degrees.context), config.dataloader_train
    readers = here * loader.num_workers * (WORKER + loader.prefetch_factor * sample_bytes)
    starting = {"weights being loaded": here * loaded}
    running = {"copies for saves": here * staged, "loader workers": readers}
    most = max(running, starting, key=lambda parts: sum(parts.values()))
    state = "training state" if config.model.config.parallelism.offload == "all" else "weights"
    always = {"processes": here * PROCESS, f"offloaded {state}": here * offloaded}
    always["offloaded activations"] = here * activations
    return Parts({name: count for name, count in {**always, **most}.items() if count})


def disk(config: Trainer.Config, *, checkpoint_bytes: int, cached_bytes: int) -> Parts:
    """Estimates the peak disk space.

    Args:
        config: Config of the run.
        checkpoint_bytes: Size of one checkpoint.
        cached_bytes: Size of the complete latent cache.
    """
    parts = {"checkpoints": kept_checkpoints(config) * checkpoint_bytes, "latent cache": cached_bytes}
    return Parts({name: count for name, count in parts.items() if count})
