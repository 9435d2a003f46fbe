"""LoRA adapters in a folder: their tensor names in a library, and whether they fit given weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.models.lora import MATRICES
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "base_model.model"
"""Prefix of the adapted model's names in PEFT."""


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """A LoRA adapter in memory; creating it raises UserError if a matrix is not finite."""

    folder: Path
    rank: int
    alpha: float
    weights: Mapping[str, Tensor]
    """Internal parameter name -> matrix."""

    def __post_init__(self) -> None:
        """Raises UserError if a matrix is not finite."""
        require_finite(str(self.folder), non_finite(self.weights))

    @property
    def layers(self) -> list[str]:
        """Paths of the adapted layers, sorted."""
        return sorted(
            {name.removesuffix(matrix) for name in self.weights for matrix in MATRICES if name.endswith(matrix)}
        )


def require_adapter_fits(adapter: StoredAdapter, source: WeightSource) -> None:
    """Raises UserError unless each adapted layer has both LoRA matrices, with shapes that fit a weight of `source`."""
    for path in adapter.layers:
        low, high = (adapter.weights.get(path + matrix) for matrix in MATRICES)
        shape = source.shapes.get(f"{path}.weight")
        if low is None or high is None:
            raise UserError(f"{adapter.folder} is damaged: it lacks a matrix of the layer {path}")
        if shape is None:
            raise UserError(
                f"{adapter.folder} adapts the layer {path}, which {source.describe} does not have: the adapter belongs "
                "to another model"
            )
        if [len(high), low.shape[1]] != list(shape) or not len(low) == high.shape[1] == adapter.rank:
            raise UserError(
                f"{adapter.folder}: the matrices of {path} have shapes {list(high.shape)} and {list(low.shape)}; "
                f"expected {[shape[0], adapter.rank]} and {[adapter.rank, shape[1]]} for a weight of {list(shape)} "
                f"with rank {adapter.rank}"
            )


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """Mapping between internal names of a family's LoRA tensors and their names in files of PEFT and diffusers."""

    family: str
    outward: Callable[[str], str]
    """Converts an internal parameter name to the library's name; raises ValueError for an unknown name."""
    inward: Callable[[str], str]
    """Converts a library name to the internal parameter name."""
    library: str
    """Package that loads the adapters, whose version is stored in an export."""
    header: Callable[[Mapping[str, Any]], dict[str, str]] = lambda config: {}
    """Returns the metadata for the safetensors header from the content of adapter_config.json."""
    part: str = ""
    """Adapted pipeline component, as named by `load_lora_weights`; empty: no pipeline can load adapters."""

    def peft_name(self, name: str) -> str:
        """Returns a LoRA tensor's name in PEFT: `….q_proj.lora_A.weight` → `base_model.model.….to_q.lora_A.weight`.

        Raises ValueError if `name` is not the internal name of a LoRA tensor.
        """
        for matrix in MATRICES:
            if name.endswith(matrix):
                return f"{PREFIX}.{self.layer_name(name.removesuffix(matrix))}{matrix}"
        raise ValueError(f"'{name}' is not the name of an adapter matrix")

    def layer_name(self, path: str) -> str:
        """Returns the module path of a layer in the library from its internal module path."""
        return self.outward(f"{path}.weight").removesuffix(".weight")

    def native_adapter_name(self, name: str) -> str:
        """Returns a LoRA tensor's internal name from its name in PEFT (inverse of `peft_name`).

        Raises ValueError if `name` is not the name of a LoRA tensor in PEFT.
        """
        for matrix in MATRICES:
            if name.endswith(matrix) and name.startswith(f"{PREFIX}."):
                base = name.removeprefix(f"{PREFIX}.").removesuffix(matrix)
                return self.inward(f"{base}.weight").removesuffix(".weight") + matrix
        raise ValueError(f"'{name}' is not the name of an adapter matrix: expected {PREFIX}.<layer>{MATRICES[0]}")
