"""LoRA adapters in a folder: their tensor names in a library, and whether they fit given weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
FILE_PREFIX = re.compile(r"transformer\.|diffusion_model\.|base_model\.model\.|lora_unet_+|lora_transformer_")
"""Prefixes of layer names in LoRA files: diffusers, ComfyUI, PEFT, kohya's trainers, OneTrainer."""
BLOCK = re.compile(r"(?<=blocks[._])\d+(?=[._])")
"""The number of a block in the name of a layer."""


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


@dataclass(frozen=True)
class LoraNames:
    """Names of a network's linear layers in LoRA files; `N` stands for the number of a block."""

    original: Mapping[str, str] = field(default_factory=dict)
    """Path of a layer in diffusers → path in the network's original code; empty: ComfyUI does not have the network."""
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Path in the original code of a layer that diffusers splits → paths in diffusers, in the order of output rows."""
    reads_diffusers: bool = False
    """Whether ComfyUI reads diffusers' paths for this network, instead of those of the original code."""
    scaled_copy: str = ""
    """Suffix of a second file with diffusers' paths, in which B is multiplied by alpha / rank, for a custom node of
    ComfyUI that ignores alpha; empty: no such file."""

    def comfyui_layer(self, path: str) -> str:
        """Returns a layer's name in LoRA files for ComfyUI from its path in diffusers.

        Raises ValueError if ComfyUI has no name for the layer.
        """
        if self.reads_diffusers:
            return f"transformer.{path}"
        name, number = without_block(path)
        if name not in self.original:
            raise ValueError(f"ComfyUI has no name for the layer {path}; omit it from model.config.lora_target_modules")
        return f"diffusion_model.{self.original[name].replace('N', number)}"

    def find_layer(self, name: str) -> list[str]:
        """Returns the paths in diffusers of a layer in a LoRA file of any program; [] for an unknown name.

        Several paths are those of a layer that diffusers splits.
        """
        bare = FILE_PREFIX.sub("", name, count=1)
        if not self.original:
            return [bare] if name.startswith(("transformer.", f"{PREFIX}.")) else []
        layer, number = without_block(bare)
        return [path.replace("N", number) for path in self._known.get(layer, ())]

    @cached_property
    def _known(self) -> Mapping[str, Sequence[str]]:
        """Path of a layer, in diffusers or in the original code, with dots or with underscores → paths in diffusers."""
        known = {original: paths for original, paths in self.joined.items()}
        known |= {path: [path] for path in (*self.original, *(path for paths in known.values() for path in paths))}
        known |= {original: [path] for path, original in self.original.items()}
        return known | {name.replace(".", "_"): paths for name, paths in known.items()}


def without_block(name: str) -> tuple[str, str]:
    """Returns the name of a layer with `N` instead of the number of its block, and that number, "" without a block."""
    found = BLOCK.search(name)
    return (name, "") if found is None else (name[: found.start()] + "N" + name[found.end() :], found[0])


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
