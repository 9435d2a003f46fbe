"""Adapters (LoRA) out of a folder, and whether they belong to some weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.models.lora import MATRICES
from worldsmith.models.weights.finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter folder that was read and checked."""

    folder: Path
    rank: int
    alpha: float
    weights: Mapping[str, Tensor]
    """Matrices by native name."""

    def __post_init__(self) -> None:
        """Raises UserError for a matrix that is not finite."""
        require_finite(str(self.folder), non_finite(self.weights))

    @property
    def layers(self) -> list[str]:
        """The paths of the adapted layers."""
        return sorted(
            {name.removesuffix(matrix) for name in self.weights for matrix in MATRICES if name.endswith(matrix)}
        )


def require_fit(adapter: StoredAdapter, source: WeightSource) -> None:
    """Raises UserError unless every matrix of an adapter belongs to a weight of `source`, and none is missing."""
    for path in adapter.layers:
        low, high = (adapter.weights.get(path + matrix) for matrix in MATRICES)
        shape = source.shapes.get(f"{path}.weight")
        if low is None or high is None:
            raise UserError(f"{adapter.folder} lacks a matrix of the layer {path}; it is damaged")
        if shape is None:
            raise UserError(
                f"{adapter.folder} adapts the layer {path}, which {source.describe} does not have: it belongs to "
                "another model"
            )
        if [len(high), low.shape[1]] != list(shape) or not len(low) == high.shape[1] == adapter.rank:
            raise UserError(
                f"{adapter.folder}: the matrices of {path} are {list(high.shape)} and {list(low.shape)}; a weight of "
                f"{list(shape)} with rank {adapter.rank} needs {[shape[0], adapter.rank]} and "
                f"{[adapter.rank, shape[1]]}"
            )
