"""Weights in a training checkpoint, or in the `model/` folder that `worldsmith convert` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.checkpoint.formats.weight_formats import weight_formats
from worldsmith.checkpoint.run.frozen_weights import require_same
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.errors import UserError
from worldsmith.files.json_file import section
from worldsmith.models.converters.converter import lasting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LIVE, AVERAGE = "net.", "net_ema."
RUN_CONFIG = "config.yaml"
ABOUT = "worldsmith.json"
"""File that describes an exported or converted folder: format, model, origin and versions."""


class CheckpointWeights(WeightSource):
    """Weights in a torch.distributed.checkpoint folder: raw weights `net.*` and optionally EMA weights `net_ema.*`.

    If the checkpoint omits the frozen weights, they are read from the base weights `below`.
    """

    def __init__(self, folder: Path, model: Any = None, below: WeightSource | None = None) -> None:
        """Reads names, shapes and dtypes of the weights in a checkpoint, but no tensor.

        Args:
            folder: Folder `model` of the checkpoint.
            model: Section `model` of the run's config as plain data; None if it is not known.
            below: Base weights for a checkpoint with trained weights only; None for a complete checkpoint.
        """
        from worldsmith.checkpoint.dcp.tensor_reader import read_entries

        self.path: Path = folder
        self.family, self.settings, self.below = *read_model(model, folder.parent), below
        self.converters = lasting(model)
        self.describe = f"checkpoint {folder.parent if folder.name == 'model' else folder}"
        self.entries = read_entries(folder)
        stored = {name: list(entry.size) for name, entry in self.entries.items()}
        self.average_shapes = strip_prefix(stored, AVERAGE)
        self.own = strip_prefix(stored, LIVE)
        self.shapes = {**(below.shapes if below else {}), **self.own}
        self.unknown = [name for name in stored if not name.startswith((LIVE, AVERAGE))]

    def read_into(self, tensors: Mapping[str, Tensor], *, average: bool = False, no_dist: bool = True) -> None:
        from worldsmith.checkpoint.dcp.tensor_reader import load_part

        state, rest = {}, {}
        for name, tensor in tensors.items():
            if average and name in self.average_shapes:
                state[AVERAGE + name] = tensor
            elif name in self.own:
                state[LIVE + name] = tensor
            else:
                rest[name] = tensor
        if state:
            load_part(self.path, state, no_dist=no_dist)
        if rest:
            if self.below is None:
                raise KeyError(f"{self.describe} has no weight {next(iter(rest))}")
            self.below.read_into(rest, no_dist=no_dist)

    def check_frozen(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Raises UserError if the frozen weights in `below` are not those with which the checkpoint was trained.

        Args:
            tensors: Internal parameter name -> weight, for weights that are already in memory. If one of the frozen
                weights is missing here, the check is skipped. None: each frozen weight is read from disk for the check.
        """
        if self.below is None:
            return
        frozen = [name for name in self.below.shapes if name not in self.own]
        values = ReadOnAccess(self, frozen) if tensors is None else {n: tensors[n] for n in frozen if n in tensors}
        if len(values) == len(frozen):
            require_same(self.path.parent, values, source=self.below.describe)

    def dtype(self, name: str, *, average: bool = False) -> torch.dtype:
        key = AVERAGE + name if average and name in self.average_shapes else LIVE + name
        if key not in self.entries and self.below is not None:
            return self.below.dtype(name)
        return self.entries[key].properties.dtype


class ReadOnAccess(Mapping[str, "Tensor"]):
    """Mapping from the internal parameter names `names` to weights, each of which is read from disk at every access."""

    def __init__(self, source: WeightSource, names: Sequence[str]) -> None:
        self.source, self.names = source, names

    def __getitem__(self, name: str) -> Tensor:
        return self.source.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def read_model(model: Any, place: Path) -> tuple[str, dict[str, Any]]:
    """Returns the model family and the network settings (field name -> value) in the section `model` of a config.

    Args:
        model: The section as plain data; None or a section without a config: returns ("", {}).
        place: Path of the checkpoint, for messages.

    Raises:
        UserError: If the section is invalid.
    """
    try:
        config = section(section({"model": model}, "model"), "config")
        family = str((model or {}).get("name", "")) if config else ""
        return family, weight_formats(family).settings_of(config) if family else {}
    except ValueError as error:
        raise UserError(f"{place}: {error}") from error


def strip_prefix(shapes: Mapping[str, list[int]], prefix: str) -> dict[str, list[int]]:
    return {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
