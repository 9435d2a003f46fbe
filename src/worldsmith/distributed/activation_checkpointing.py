"""Full activation checkpointing: a layer keeps its inputs only and runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from torch import nn


def checkpoint_layers(layers: Iterable[nn.Module], *, preserve_rng_state: bool) -> None:
    """Makes each layer recompute itself, in place; call before sharding. Parameter names stay as they are.

    PyTorch compares shapes, dtypes and devices of the recomputed tensors with the originals.
    """
    for layer in layers:
        layer.forward = partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=preserve_rng_state,
        )
