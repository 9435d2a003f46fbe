"""Parameter names and shapes computed from sizes, without building a network."""

from __future__ import annotations

from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...]]
"""Shapes of parameters by internal parameter name."""


def linear(path: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    """Returns the parameter shapes of a linear layer: `path`.weight [outputs, inputs] and, with `bias`, `path`.bias."""
    return {f"{path}.weight": (outputs, inputs), **({f"{path}.bias": (outputs,)} if bias else {})}


def norm(path: str, channels: int, *, bias: bool = False) -> Shapes:
    """Returns the parameter shapes of a norm layer: `path`.weight and, with `bias`, `path`.bias, each [channels]."""
    return {f"{path}.weight": (channels,), **({f"{path}.bias": (channels,)} if bias else {})}


def repeat_shapes(path: str, count: int, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Returns the shapes of a list of `count` equal modules, named `path`.0.…, `path`.1.… and so on.

    Args:
        path: Path of the list.
        count: Number of modules.
        shapes: Shapes of one module, by parameter name within it.
    """
    return {f"{path}.{index}.{name}": shape for index in range(count) for name, shape in shapes.items()}


def matrices(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Returns the paths of the layers whose `weight` has two dimensions; `shapes` are by internal parameter name."""
    weights = (name for name, shape in shapes.items() if len(shape) == 2 and name.endswith(".weight"))
    return [name.removesuffix(".weight") for name in weights]
