"""What one rank does and holds in a step, as numbers; no torch is needed to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]
BESIDE = ("loading", "encoding", "validation", "sampling", "saving")
"""Phases that are no part of a step."""
BEFORE = ("building", "loading")
"""Those before the first one, and before anything is encoded."""


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """The worst moment of one phase of a run, in bytes of tensors on the device."""

    name: str
    """building, loading, encoding, forward, backward, optimizer, average, validation, sampling, saving."""
    peak: int
    kinds: Mapping[str, int]
    """At that moment; their sum is the peak: parameters, gradients, moments, average, activations, gathered (weights),
    communication (its buffers), inputs, encoders, other."""
    modules: Sequence[tuple[str, int]]
    """Parts of the network whose activations are held then, layers of a kind together, largest first."""
    main_memory: int = 0
    """The most that it holds beside the device: a weight on its way there, the copy from which a save is written."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind in one group of ranks."""

    op: Collective
    group: str
    """What the ranks of the group share: dp_shard, dp_replicate, context, world."""
    ranks: int
    span: int
    """Ranks from the first to the last of the group: more than a machine has means that it leaves the machine."""
    calls: int
    payload: int
    """Bytes of the whole tensor, that is gathered or before it is scattered, over all calls."""

    @property
    def sent(self) -> int:
        """Bytes that a rank sends, by the ring algorithms: (n-1)/n of the payload, twice that for a sum everywhere."""
        share = self.payload * (self.ranks - 1) // self.ranks
        return 2 * share if self.op == "all_reduce" else share


@dataclass(frozen=True, slots=True)
class StepWork:
    """One optimizer step of one rank, after the first one, which has made the optimizer's states."""

    rank: int
    ranks: int
    phases: Sequence[PhaseMemory]
    traffic: Sequence[Traffic]
    model_flops: int
    """Operations of matrix products and attention, those of recomputation left out."""
    hardware_flops: int
    """The same with recomputation."""
    attention_flops: int
    """Of the latter, those of attention, whose kernels reach another share of a device's peak."""
    moved_bytes: int
    """Read and written by everything that is no matrix product and no attention, each operation on its own."""
    samples: int
    tokens: int
    seconds: float
    """That the simulation took."""
    skipped_flops: int = 0
    """Of those of attention what kernels leave out, since nothing sees what comes after it."""

    encode_bytes: int = 0
    """What `worldsmith encode` holds on a device: the clips' encoder, and after it that of captions. 0: not known."""

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        for entry, traffic in zip(found["traffic"], self.traffic, strict=True):
            entry["sent"] = traffic.sent
        return found
