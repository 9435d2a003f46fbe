"""State of the random generators of this process as plain tensors (a checkpoint contains no pickled code)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seeds the global random generators of Python, NumPy and torch (CPU and all GPUs)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Context manager: after the block, restores the RNG states of Python, NumPy and torch (CPU and current GPU)."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


@contextmanager
def seeded_rng(seed: int) -> Iterator[None]:
    """Context manager: seeds torch's default generators (CPU and current GPU) and restores their states afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def rng_state() -> dict[str, Tensor]:
    """Returns the RNG states of torch, NumPy, Python and the current CUDA device as tensors, for `set_rng_state`.

    The keys are torch (uint8), numpy (int64 [626]), python (int64 [627]), numpy_gauss and python_gauss (float64
    scalars: the cached normal variates) and, with CUDA, torch_cuda (uint8).
    """
    legacy = np.random.get_state(legacy=False)
    version, numbers, gauss_next = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": torch.tensor(
            [*legacy["state"]["key"].tolist(), legacy["state"]["pos"], legacy["has_gauss"]], dtype=torch.int64
        ),
        "numpy_gauss": torch.tensor(legacy["gauss"], dtype=torch.float64),
        "python": torch.tensor([version, *numbers, gauss_next is not None], dtype=torch.int64),
        "python_gauss": torch.tensor(gauss_next or 0.0, dtype=torch.float64),
    }
    if torch.cuda.is_available():
        state["torch_cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Tensor]) -> None:
    """Restores the RNG states of torch, NumPy, Python and the current CUDA device that `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    *keys, position, has_gauss = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, state["numpy_gauss"].item()))
    version, *numbers, has_next = state["python"].tolist()
    random.setstate((version, tuple(numbers), state["python_gauss"].item() if has_next else None))
    if "torch_cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["torch_cuda"])
