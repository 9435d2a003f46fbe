"""`WeightSource`: weights on disk by internal parameter name; joined sources, merged adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from worldsmith.models.fill_parameters import fill
from worldsmith.models.lora import MATRICES, is_adapter, merged_weight

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class WeightSource(ABC):
    """Base class of weights on disk: names and shapes of all weights, and methods that read tensors on request.

    Names are internal parameter names without the prefix `net.` of training checkpoints. A tensor is read completely,
    or only this rank's shard of it.
    """

    path: Path = Path()
    """Folder with the weights."""
    describe: str
    """Description of the source for messages."""
    family: str = ""
    """Name of the model family; empty if the files do not state it."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Field name of the network config -> value, for the settings that the files state; may be empty."""
    converters: Sequence[str] = ()
    """Class names of the converters that the network was trained with and still needs for inference."""
    shapes: dict[str, list[int]]
    """Name -> shape of the raw weights, including those in `copies`."""
    average_shapes: Mapping[str, list[int]] = MappingProxyType({})
    """Name -> shape of the EMA weights; may be empty. For a weight without EMA, such as a frozen one, the raw weight is
    used."""
    copies: Mapping[str, str] = MappingProxyType({})
    """Name of a weight that is not stored → name of the stored weight that it equals."""
    adapter_alpha: float | None = None
    """LoRA alpha of the adapters in the source; None if the source has no adapters or does not state it."""
    unknown: Sequence[str] = ()
    """Names of tensors in the files that do not belong to the network, such as those of a vision encoder."""

    def is_optional(self, name: str) -> bool:
        """Returns whether the weight `name` may be missing: a LoRA adapter, if this source has no adapters at all."""
        return is_adapter(name) and not any(is_adapter(other) for other in self.shapes)

    def shape(self, name: str, *, average: bool = False) -> list[int] | None:
        """Returns the stored shape of a weight; None if the source does not have it.

        Args:
            name: Internal parameter name.
            average: Whether the shape of the EMA weight is returned if it exists.
        """
        own = self.average_shapes.get(name) if average else None
        return own if own is not None else self.shapes.get(name)

    @abstractmethod
    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        """Reads weights into existing tensors, in place; the tensors keep their dtype.

        Args:
            tensors: Internal parameter name -> tensor to fill; a DTensor gets this rank's shard.
            average: Whether EMA weights are read if they exist.
            no_dist: Whether this process reads by itself. False: collective, all ranks must call this function.

        Raises:
            KeyError: If the source does not have a weight.
            UserError: If a file cannot be read.
        """

    def read(self, name: str, *, average: bool = False) -> Tensor:
        """Reads one complete weight to host RAM, in its stored dtype.

        Args:
            name: Internal parameter name.
            average: Whether the EMA weight is read if it exists.

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
        """Returns the stored dtype of the weight `name`; with `average`, that of its EMA weight if it exists."""


class JoinedWeights(WeightSource):
    """Weights from several sources. Each weight is read from one source, in which its name may be different."""

    def __init__(self, describe: str, places: Mapping[str, tuple[WeightSource, str]]) -> None:
        """Combines several sources.

        Args:
            describe: Description of the combined weights, for messages.
            places: Name of a weight → (source, name of the weight in that source).
        """
        self.describe, self.places = describe, places
        self.shapes = {name: source.shapes[there] for name, (source, there) in places.items()}
        averages = {name: source.average_shapes.get(there) for name, (source, there) in places.items()}
        self.average_shapes = {name: shape for name, shape in averages.items() if shape is not None}

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
        adapters: Internal parameter name -> adapter matrix; None: the adapters in `source` are merged.
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
            average: Whether the EMA weights of the adapters are read if they exist.
        """
        bases = (name.removesuffix(".weight") for name in sorted(self.adapted))
        return any(bool(self._matrix(base + MATRICES[1], average).any()) for base in bases)

    def _matrix(self, name: str, average: bool) -> Tensor:
        return self.source.read(name, average=average) if self.adapters is None else self.adapters[name]
