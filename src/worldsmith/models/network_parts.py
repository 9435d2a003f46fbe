"""`NetworkParts`: the modules and methods that training shards, compiles and recomputes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class NetworkParts:
    """Module structure of a network: which modules FSDP shards, torch.compile compiles and checkpointing recomputes."""

    layers: Sequence[nn.Module]
    """Repeated layers of the network; FSDP all-gathers each one separately."""
    compiled: Sequence[str] = ("forward",)
    """Names of the methods of a layer that torch.compile compiles."""
    uncompiled: Sequence[nn.Module] = ()
    """Layers that are never compiled."""
    recomputed: Sequence[str] = ("forward",)
    """Names of the methods of a layer that gradient checkpointing may recompute, each separately."""
    recomputed_pieces: Sequence[str] = ()
    """Names of the methods that selective gradient checkpointing recomputes instead; empty: those in `recomputed`."""
    units: Sequence[nn.Module] = ()
    """Other modules that FSDP all-gathers separately, such as an embedding table."""
    full_precision: Sequence[nn.Module] = ()
    """Modules that compute in float32 regardless of the network's precision."""
    unused: Sequence[nn.Module] = ()
    """Modules that training does not use."""
    entries: Mapping[nn.Module, Sequence[str]] = field(default_factory=dict)
    """Names of methods other than `forward` before which FSDP all-gathers the weights of a module, by module."""
    share_tokens: Callable[[Callable[[int], Any]], None] | None = None
    """Setter for context parallelism: gives the network a function that shards a sequence of a given length over ranks.
    None: context parallelism is not supported."""
