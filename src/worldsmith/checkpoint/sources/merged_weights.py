"""Weights with adapters merged in, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.models.fill import fill
from worldsmith.models.lora import MATRICES, is_adapter, merged_weight

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class MergedWeights(WeightSource):
    """`merged_weight` for every weight of `source` that has an adapter; the others as they are.

    The adapters are those that the source holds, or `adapters`, by native name.
    """

    def __init__(self, source: WeightSource, scale: float, adapters: Mapping[str, Tensor] | None = None) -> None:
        self.source, self.scale, self.adapters = source, scale, adapters
        self.path, self.family = source.path, source.family
        self.settings, self.unknown = source.settings, source.unknown
        self.copies = source.copies
        self.describe = f"{source.describe} with its adapters merged"
        self.shapes = {name: shape for name, shape in source.shapes.items() if not is_adapter(name)}
        self.average_shapes = {name: shape for name, shape in source.average_shapes.items() if not is_adapter(name)}
        self.adapted = {
            f"{name.removesuffix(MATRICES[0])}.weight"
            for name in (source.shapes if adapters is None else adapters)
            if name.endswith(MATRICES[0])
        }

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        plain = {name: tensor for name, tensor in tensors.items() if name not in self.adapted}
        self.source.read_into(plain, average=average, no_dist=no_dist)
        for name in tensors.keys() & self.adapted:
            base = name.removesuffix(".weight")
            low, high = (self._matrix(base + part, average) for part in MATRICES)
            fill(tensors[name], merged_weight(self.source.read(name, average=average), low, high, self.scale))

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        return self.source.dtype(name, average=average)

    def changes_something(self, *, average: bool = False) -> bool:
        """Whether any B is not zero."""
        bases = (name.removesuffix(".weight") for name in sorted(self.adapted))
        return any(bool(self._matrix(base + MATRICES[1], average).any()) for base in bases)

    def _matrix(self, name: str, average: bool) -> Tensor:
        return self.source.read(name, average=average) if self.adapters is None else self.adapters[name]
