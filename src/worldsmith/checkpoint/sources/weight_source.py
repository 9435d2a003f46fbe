"""`WeightSource`: weights on disk by internal parameter name; joined sources, merged adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.models.fill import fill
from worldsmith.models.lora import MATRICES, is_adapter, merged_weight

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class WeightSource(ABC):
    """Names and shapes of stored weights, which are read tensor by tensor: complete, or each rank its own shard.

    Names are internal parameter names without the prefix `net.` of training checkpoints. Tensors are read only on
    request.
    """

    path: Path
    """Folder with the tensors."""
    describe: str
    """Description of the source for messages."""
    family: str = ""
    """Model family; empty if it is not stated anywhere."""
    settings: dict[str, Any]
    """Network settings that the source states, by field name of the network config; may be empty."""
    converters: Sequence[str] = ()
    """Classes of the converters that its network was trained with and that training continues with."""
    shapes: dict[str, list[int]]
    """Raw weights, including copies of others (`copies`)."""
    average_shapes: dict[str, list[int]]
    """EMA weights. If only trained weights have EMA weights, raw weights are used for the others."""
    copies: dict[str, str]
    """Weights that the format does not contain → the weight that each is a copy of."""
    adapter_alpha: float | None = None
    """LoRA alpha of its adapters; None if there are none, or if it is not stated."""
    unknown: list[str]
    """Tensors in the folder that do not belong to such a network, such as a vision encoder's."""

    def lacks_by_nature(self, name: str) -> bool:
        """Returns whether sources of this kind never contain this weight, which then keeps its initial value."""
        return is_adapter(name) and not any(is_adapter(other) for other in self.shapes)

    def shape(self, name: str, *, average: bool = False) -> list[int] | None:
        """Returns the stored shape of a weight; None if the source does not have it.

        Args:
            name: Internal parameter name.
            average: Prefer the EMA weight, if there is one.
        """
        own = self.average_shapes.get(name) if average else None
        return own if own is not None else self.shapes.get(name)

    @abstractmethod
    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        """Reads weights into existing tensors, which keep their dtype.

        Args:
            tensors: Tensors to fill by internal parameter name; a DTensor gets this rank's shard.
            average: Read the EMA weight, if there is one.
            no_dist: This process reads alone. False: collective, all ranks must call it.

        Raises:
            KeyError: If the source does not have a weight.
            UserError: If a file cannot be read.
        """

    def read(self, name: str, *, average: bool = False) -> Tensor:
        """Reads one complete weight to host RAM, in its stored dtype.

        Args:
            name: Internal parameter name.
            average: Read the EMA weight, if there is one.

        Raises:
            KeyError: If the source does not have the weight.
        """
        import torch

        shape = self.shape(name, average=average)
        if shape is None:
            raise KeyError(f"{self.describe} has no weight {name}")
        value = torch.empty(shape, dtype=self.dtype(name, average=average))
        self.read_into({name: value}, average=average)
        return value

    @abstractmethod
    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        """Returns the dtype in which a weight is stored."""


class JoinedWeights(WeightSource):
    """Combines several sources: each weight is read from one of them, possibly under another name."""

    def __init__(self, describe: str, places: Mapping[str, tuple[WeightSource, str]]) -> None:
        """Combines the sources in `places`: name → (source, name in the source)."""
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


class MergedWeights(WeightSource):
    """Weights of `source` with their LoRA adapters merged (`merged_weight`); weights without an adapter are unchanged.

    Args:
        source: Base weights, with or without adapters.
        scale: Scale of the adapters, alpha / rank.
        adapters: Adapter matrices by internal parameter name; None: those in the source.
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
        """Returns whether merging the LoRA adapters changes a weight, that is, whether a B matrix is not zero.

        Args:
            average: Read the EMA weights instead of the raw ones.
        """
        bases = (name.removesuffix(".weight") for name in sorted(self.adapted))
        return any(bool(self._matrix(base + MATRICES[1], average).any()) for base in bases)

    def _matrix(self, name: str, average: bool) -> Tensor:
        return self.source.read(name, average=average) if self.adapters is None else self.adapters[name]
