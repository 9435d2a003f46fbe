"""Names and shapes of parameters by arithmetic: what a network will hold, without a tensor."""

from __future__ import annotations

from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...]]
"""Internal parameter name of a parameter → its shape."""


def linear(path: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    """Returns the shapes of a linear layer."""
    return {f"{path}.weight": (outputs, inputs), **({f"{path}.bias": (outputs,)} if bias else {})}


def norm(path: str, channels: int, *, bias: bool = False) -> Shapes:
    """Returns the shapes of a norm with weights."""
    return {f"{path}.weight": (channels,), **({f"{path}.bias": (channels,)} if bias else {})}


def repeat_shapes(path: str, count: int, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Returns the shapes of `count` equal modules in a list."""
    return {f"{path}.{index}.{name}": shape for index in range(count) for name, shape in shapes.items()}


def matrices(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Returns the paths of the layers whose weight is a matrix."""
    weights = (name for name, shape in shapes.items() if len(shape) == 2 and name.endswith(".weight"))
    return [name.removesuffix(".weight") for name in weights]
