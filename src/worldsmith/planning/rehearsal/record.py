"""What one rank of a rehearsed run did and wants to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.planner import SavePlan

    from worldsmith.planning.simulation.traffic import Sent


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that would go wrong in the run."""

    part: str
    """Of the rehearsal: degrees, first step, save, resume, export."""
    message: str

    def __str__(self) -> str:
        return f"{self.part}: {self.message}"


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of the network, as a rank holds it."""

    shape: Sequence[int]
    """Of the whole."""
    dtype: torch.dtype
    trained: bool
    whole: bool
    """Whether the rank holds all of it, unsharded, and not because it is meant to (`Model.held`)."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank's building, first step and save."""

    rank: int
    data_rank: int
    weights: Mapping[str, Weight] = field(default_factory=dict)
    """By native name."""
    trace: Sequence[Sent] = ()
    """Collectives of the first step, in their order."""
    plans: Mapping[str, SavePlan] = field(default_factory=dict)
    """What it would write, of each part of a checkpoint."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Small files beside the tensors."""
    tokens: int = 0
    error: str = ""
    """Why it came no further."""
