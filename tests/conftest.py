"""For all tests: one thread for each process, and no process group left to the next file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# Before torch is imported, here and in what tests start: processes with more threads than cores get many times slower.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_stays() -> Iterator[None]:
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
