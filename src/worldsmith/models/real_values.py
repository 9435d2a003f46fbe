"""Marks code in which tensors must have real values, even in a simulation on fake tensors."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def real_values() -> Iterator[None]:
    """Context manager: disables all dispatch modes (fake mode, counters, …), so that tensors have real values.

    For small tensors that determine sizes: sample offsets in a pack, position tables, masks. No effect without a mode.
    """
    modes = sys.modules.get("torch.utils._python_dispatch")
    if modes is None or not modes._get_current_dispatch_mode_stack():
        yield
        return
    with modes._disable_current_modes():
        yield


def in_simulation() -> bool:
    """Returns whether tensors have neither memory nor values: what would read weights makes them from a config
    alone."""
    fake, modes = sys.modules.get("torch._subclasses.fake_tensor"), sys.modules.get("torch.utils._python_dispatch")
    if fake is None or modes is None:
        return False
    return any(isinstance(mode, fake.FakeTensorMode) for mode in modes._get_current_dispatch_mode_stack())


def without_values(make: Callable[[], R], dtype: torch.dtype, device: str | torch.device) -> R:
    """Returns a module out of `make`, whose weights are of that type and on that device from the start.

    In a simulation a module cannot be moved: whoever watches its tensors would lose them.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make()
    finally:
        torch.set_default_dtype(before)


def with_real_values(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that runs in `real_values`."""

    @functools.wraps(function)
    def run(*arguments: P.args, **settings: P.kwargs) -> R:
        with real_values():
            return function(*arguments, **settings)

    return run
