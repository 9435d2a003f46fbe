"""Fills parameters, possibly sharded, with complete values that depend only on a seed and their names."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from worldsmith.models.real_values import real_values

if TYPE_CHECKING:
    from torch import Tensor

Parameter = TypeVar("Parameter")


def chosen(parameters: Mapping[str, Parameter], names: Collection[str] | None) -> dict[str, Parameter]:
    """Selects parameters by name; the result has the order of `parameters`.

    Args:
        parameters: Parameters by internal parameter name.
        names: Names to select; None: all.

    Raises:
        ValueError: If a name is unknown.
    """
    unknown = sorted(set(names or ()) - parameters.keys())
    if unknown:
        raise ValueError(f"the network has no parameter {unknown[0]} ({len(unknown)} unknown names)")
    return {name: parameter for name, parameter in parameters.items() if names is None or name in names}


def seed_of(seed: int, name: str) -> int:
    """Returns the seed for the initial values of the parameter `name`: a hash of the run's `seed` and `name`."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


def fill(parameter: Tensor, value: Any) -> None:
    """Copies values into a parameter; if it is sharded, only this rank's shard is copied, without communication.

    Args:
        parameter: Parameter to overwrite, possibly a DTensor.
        value: Complete tensor, or a slice of a safetensors file.
    """
    if not hasattr(parameter, "__create_chunk_list__"):
        parameter.copy_(value[...])
        return
    local = parameter.to_local()  # type: ignore[attr-defined]
    if local.numel():
        with real_values():  # the offsets of shards are read from tensors
            chunk = parameter.__create_chunk_list__()[0]
        part = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes))
        local.copy_(value[part])
