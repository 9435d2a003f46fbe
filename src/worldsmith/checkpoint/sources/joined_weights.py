"""Weights that lie in several sources, under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.sources.weight_source import WeightSource

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class JoinedWeights(WeightSource):
    """Each weight is one of another source, which may call it otherwise."""

    def __init__(self, describe: str, places: Mapping[str, tuple[WeightSource, str]]) -> None:
        """`places`: name here → source, and name there."""
        self.describe, self.places = describe, places
        self.path, self.settings = Path(), {}
        self.shapes = {name: source.shapes[there] for name, (source, there) in places.items()}
        averages = {name: source.average_shapes.get(there) for name, (source, there) in places.items()}
        self.average_shapes = {name: shape for name, shape in averages.items() if shape is not None}
        self.copies, self.unknown = {}, []

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        sources = {id(self.places[name][0]): self.places[name][0] for name in tensors}
        for key, source in sources.items():
            own = {self.places[name][1]: tensor for name, tensor in tensors.items() if id(self.places[name][0]) == key}
            source.read_into(own, average=average, no_dist=no_dist)

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        source, there = self.places[name]
        return source.dtype(there, average=average)
