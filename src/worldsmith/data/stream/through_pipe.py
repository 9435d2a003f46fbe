"""How a sample leaves its worker process."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class ThroughPipe:
    """A dataclass of values and tensors that is pickled as numpy arrays.

    As tensors they would need shared memory, which is tiny in many containers.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return rebuild, (type(self), [value.numpy() if hasattr(value, "numpy") else value for value in values])


def rebuild(kind: type[Any], values: list[Any]) -> Any:
    import torch

    return kind(*(torch.from_numpy(value) if hasattr(value, "__array__") else value for value in values))
