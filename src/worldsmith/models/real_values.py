"""Marks code in which tensors must have real values, even in a simulation on fake tensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

R = TypeVar("R")


@contextlib.contextmanager
def real_values() -> Iterator[None]:
    """Context manager: disables all dispatch modes (such as fake mode), so that new tensors have real values.

    Used for small tensors that determine sizes, such as offsets of samples in a packed sequence, position tables and
    masks. It has no effect if no dispatch mode is active.
    """
    modes = sys.modules.get("torch.utils._python_dispatch")
    if modes is None or not modes._get_current_dispatch_mode_stack():
        yield
        return
    with modes._disable_current_modes():
        yield


def in_simulation() -> bool:
    """Returns whether a fake tensor mode is active, in which tensors have neither memory nor values.

    Callers that would read weights must build the module from its config instead.
    """
    fake, modes = sys.modules.get("torch._subclasses.fake_tensor"), sys.modules.get("torch.utils._python_dispatch")
    if fake is None or modes is None:
        return False
    return any(isinstance(mode, fake.FakeTensorMode) for mode in modes._get_current_dispatch_mode_stack())


def without_values(make: Callable[[], R], dtype: torch.dtype, device: str | torch.device) -> R:
    """Builds and returns a module whose weights have their final dtype and device from the start.

    For simulations: moving or converting a module would replace the tensors that the memory tracker follows.

    Args:
        make: Builds the module from a config, without reading weights.
        dtype: Default dtype while `make` runs.
        device: Default device while `make` runs.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make()
    finally:
        torch.set_default_dtype(before)
