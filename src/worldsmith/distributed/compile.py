"""torch.compile of parts of a network. Every layer has the same code, so all share one compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from worldsmith.config.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.config.sections import CompileConfig

VERSIONS = 32
"""Compilations of a method: by length where that is fixed, by what needs a gradient, with and without autograd."""


def compile_methods(modules: Iterable[nn.Module], names: Sequence[str], config: CompileConfig) -> None:
    """Compiles these methods of each module, in place; the network and its parameters keep their names."""
    if not config.enabled:
        return
    for module in modules:
        for name in names:
            setattr(module, name, compiled(getattr(module, name), dynamic=config.compile_dynamic))


def compiled(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
    """`function` as one graph. Raises UserError, with the way out, when that cannot be made; never runs uncompiled."""
    # torch's overloads forget the limit, which its signature has.
    fast = torch.compile(function, fullgraph=True, dynamic=dynamic, recompile_limit=VERSIONS)  # type: ignore[call-overload]

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return fast(*args, **kwargs)
        except RuntimeError as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            name = getattr(function, "__qualname__", repr(function))
            remedy = "" if dynamic else "compile_dynamic = true (this fits packs of many sizes), or "
            raise UserError(
                f"model.config.compile: {name} could not be compiled; set {remedy}enabled = false. "
                f"{type(error).__name__}: {error}"
            ) from error

    return run
