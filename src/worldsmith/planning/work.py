"""Memory, communication and FLOPs of one rank as plain numbers; does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]
BESIDE = ("loading", "encoding", "validation", "sampling", "saving")
"""Names of the phases outside of the training step."""
ENCODING_FIRST = "encoding first"
"""Name of the phase that encodes all samples before the network gets memory."""
BEFORE = (ENCODING_FIRST, "building", "loading")
"""Names of the phases before the first step, after which no encoder stays loaded."""


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Memory breakdown at the peak of one phase of a run, in bytes of tensors on the device."""

    name: str
    """Name of the phase: encoding first, building, loading, encoding, forward, backward, optimizer, average (EMA
    update), validation, sampling or saving."""
    peak: int
    kinds: Mapping[str, int]
    """Bytes by category, with the sum `peak`: parameters, gradients, `moments` (optimizer state), `average` (EMA
    weights), activations, gathered (all-gathered parameters), communication (buffers), inputs, encoders, other."""
    modules: Sequence[tuple[str, int]]
    """Activation bytes by module, largest first; repeated layers are summed."""
    main_memory: int = 0
    """Peak host RAM in bytes: weights that are being loaded, or the staging copy of a save."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Total of all calls of one collective in one process group."""

    op: Collective
    group: str
    """Name of the process group: dp_shard, dp_replicate, context or world."""
    ranks: int
    span: int
    """Last rank - first rank + 1; a group spans machines if this exceeds the number of GPUs per machine."""
    calls: int
    payload: int
    """Bytes of the full (gathered or unscattered) tensors of all calls."""

    @property
    def sent(self) -> int:
        """Bytes that a rank sends with ring algorithms: (n-1)/n of the payload, twice that for all-reduce."""
        share = self.payload * (self.ranks - 1) // self.ranks
        return 2 * share if self.op == "all_reduce" else share


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of one rank in a simulated optimizer step with existing optimizer state, and the memory of all phases."""

    rank: int
    ranks: int
    phases: Sequence[PhaseMemory]
    traffic: Sequence[Traffic]
    model_flops: int
    """FLOPs of matmuls and attention without recomputation."""
    hardware_flops: int
    """FLOPs of matmuls and attention, including recomputation."""
    attention_flops: int
    """Part of `hardware_flops` in attention, whose kernels have another efficiency."""
    moved_bytes: int
    """Bytes that operators except matmuls, convolutions and attention read and write, if none of them are fused."""
    samples: int
    tokens: int
    seconds: float
    """Duration of the simulation in seconds."""
    skipped_flops: int = 0
    """Part of `attention_flops` that kernels do not execute: the masked half of causal attention."""
    to_device_bytes: int = 0
    """Bytes of offloaded weights and other training state that are copied from host RAM to the device."""
    to_host_bytes: int = 0
    """Bytes of training state that are copied from the device to host RAM."""
    activation_copy_bytes: int = 0
    """Bytes of activations that are copied to host RAM and back, counted in both directions."""

    encoding: PhaseMemory | None = None
    """Phase `ENCODING_FIRST`, as in `worldsmith encode`: the larger peak of video encoder and text encoder. None: not
    known."""

    @property
    def copied_bytes(self) -> int:
        """Bytes of all copies between the device and host RAM, in both directions."""
        return self.to_device_bytes + self.to_host_bytes + self.activation_copy_bytes

    @property
    def host_bytes(self) -> int:
        """Peak bytes of offloaded tensors in host RAM during a step."""
        step = (phase.main_memory for phase in self.phases if phase.name in ("forward", "backward", "optimizer"))
        return max(step, default=0)

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["encode_bytes"] = (found.pop("encoding") or {"peak": 0})["peak"]
        for entry, traffic in zip(found["traffic"], self.traffic, strict=True):
            entry["sent"] = traffic.sent
        return found
