"""What the layers of a network get to see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(slots=True)
class Seen:
    """What layers have got so far, by their paths."""

    largest: dict[str, Tensor] = field(default_factory=dict)
    """The largest absolute input, float32 []."""
    moments: dict[str, Tensor] = field(default_factory=dict)
    """The sum of x xᵀ over inputs x, float32 [in, in], on the layer's device."""


@contextmanager
def watch_inputs(network: nn.Module, layers: Iterable[str], moments_of: Collection[str] = ()) -> Iterator[Seen]:
    """Inside, notes the inputs of `layers`, and the moments of those that are `moments_of` too."""
    seen, modules = Seen(), dict(network.named_modules())

    def watching(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            inputs = given[0].detach()
            top = inputs.abs().amax().float().cpu()
            seen.largest[name] = top if name not in seen.largest else top.maximum(seen.largest[name])
            if name in moments_of:
                rows = inputs.flatten(0, -2).float()
                total = rows.T @ rows
                seen.moments[name] = seen.moments[name].add_(total) if name in seen.moments else total

        return look

    handles = [modules[name].register_forward_pre_hook(watching(name)) for name in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
