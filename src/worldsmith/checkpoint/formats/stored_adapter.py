"""LoRA adapters in a folder: their tensor names in a library, and whether they fit given weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.lora_names import PREFIX, LoraNames
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.models.fill_parameters import fill
from worldsmith.models.lora import MATRICES, is_adapter
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
        return layers_of(self.weights)


def layers_of(adapters: Iterable[str]) -> list[str]:
    """Returns the paths of the adapted layers, sorted, from the internal names of LoRA matrices."""
    return sorted({name.removesuffix(matrix) for name in adapters for matrix in MATRICES if name.endswith(matrix)})


def require_effect(adapters: Mapping[str, Tensor]) -> None:
    """Raises ValueError if all LoRA B matrices in `adapters` are zero, so that the adapters have no effect."""
    if not any(bool(tensor.any()) for name, tensor in adapters.items() if name.endswith(MATRICES[1])):
        raise ValueError("all adapters are zero, as before training, so they have no effect")


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


class AdaptedWeights(WeightSource):
    """Weights of `source` and, as weights of their own, the matrices of a LoRA adapter; the adapter is not merged."""

    def __init__(self, source: WeightSource, adapter: StoredAdapter) -> None:
        self.source, self.adapter = source, adapter
        self.path, self.family, self.settings = source.path, source.family, source.settings
        self.copies, self.unknown, self.converters = source.copies, source.unknown, source.converters
        self.describe = f"{source.describe} with the adapters of {adapter.folder}"
        self.shapes = source.shapes | {name: list(matrix.shape) for name, matrix in adapter.weights.items()}
        self.average_shapes = source.average_shapes

    def is_optional(self, name: str) -> bool:
        return is_adapter(name) or self.source.is_optional(name)

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        own = {name: tensor for name, tensor in tensors.items() if name in self.adapter.weights}
        rest = {name: tensor for name, tensor in tensors.items() if name not in own}
        self.source.read_into(rest, average=average, no_dist=no_dist)
        for name, tensor in own.items():
            fill(tensor, self.adapter.weights[name])

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        found = self.adapter.weights.get(name)
        return self.source.dtype(name, average=average) if found is None else found.dtype


def require_new_adapter(adapter: StoredAdapter, source: WeightSource, wanted: Iterable[str]) -> None:
    """Raises UserError unless a run can load `adapter` in addition to the base weights `source`.

    Args:
        adapter: Adapter to load.
        source: Base weights, which must not contain adapters.
        wanted: Internal parameter names of the run.
    """
    if any(map(is_adapter, source.shapes)):
        raise UserError(
            f"{source.describe} already contains adapters; omit checkpoint.load_adapter or start from its base"
        )
    surplus = sorted(set(adapter.layers) - set(layers_of(wanted)))
    if surplus:
        targets = ",".join(dict.fromkeys(re.sub(r"^.*?\.\d+\.", "", layer) for layer in adapter.layers))
        raise UserError(
            f"{adapter.folder} adapts {len(surplus)} layers that have no adapter in this run, such as {surplus[0]}. "
            f'Set model.config.lora_target_modules = "{targets}"'
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
    names: LoraNames = field(default_factory=LoraNames)
    """Names of the layers in LoRA files of other programs."""

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
