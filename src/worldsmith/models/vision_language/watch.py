"""What the layers of a network get to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def watch_inputs(network: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Inside, the largest absolute input so far of each layer (by its path) that has got any; float32 [] on the CPU."""
    largest: dict[str, Tensor] = {}

    def watching(name: str) -> Any:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            top = given[0].detach().abs().amax().float().cpu()
            largest[name] = top if name not in largest else top.maximum(largest[name])

        return look

    modules = dict(network.named_modules())
    handles = [modules[name].register_forward_pre_hook(watching(name)) for name in layers]
    try:
        yield largest
    finally:
        for handle in handles:
            handle.remove()
