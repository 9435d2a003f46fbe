"""`NetworkParts`: the modules and methods that training shards, compiles and recomputes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class NetworkParts:
    """Module structure of a network for sharding, compilation and gradient checkpointing."""

    layers: Sequence[nn.Module]
    """Repeated layers; FSDP all-gathers each one separately."""
    compiled: Sequence[str] = ("forward",)
    """Methods of a layer that are compiled."""
    uncompiled: Sequence[nn.Module] = ()
    """Layers that are never compiled."""
    recomputed: Sequence[str] = ("forward",)
    """Methods of a layer that may run again in the backward pass, each on its own."""
    units: Sequence[nn.Module] = ()
    """Other parts that are gathered on their own, such as an embedding table."""
    full_precision: Sequence[nn.Module] = ()
    """Parts that compute in float32 whatever the rest does."""
    unused: Sequence[nn.Module] = ()
    """Parts that no pass of the training uses."""
    entries: Mapping[nn.Module, Sequence[str]] = field(default_factory=dict)
    """Methods next to `forward` around which a part's weights are gathered too."""
    share_tokens: Callable[[Callable[[int], Any]], None] | None = None
    """Setter of the function that shards a stream of tokens; None: no support for context parallelism."""
