"""For all tests: one thread for each process, no GPU, time enough, and no process group left to the next file."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from warm_worldsmith import warm_programs

# Before torch is imported, here and in what tests start: processes with more threads than cores get many times slower.
os.environ["OMP_NUM_THREADS"] = "1"
# Tests are about the code that runs anywhere, and ranks of theirs would share one GPU. Those in tests/gpu need one.
if os.environ.get("WORLDSMITH_GPU_TESTS") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Texts are as wide as in a pipe, whatever the terminal of the tests; workers of pytest-xdist set 80 columns.
os.environ.pop("COLUMNS", None)
# Hundreds of processes start here: each would compile all sources of ours again where no bytecode is written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How quick an example is depends on what else the machine does. A fixture may serve all examples of a test.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("any machine")


# What is imported and collected stays: looking for garbage among it again and again takes a quarter of the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def programs() -> Iterator[str]:
    """Folders for PATH: its `worldsmith` is the real one, but for the seconds of imports before each command."""
    with warm_programs() as folder:
        yield f"{folder}:{Path(sys.executable).parent}"


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_stays() -> Iterator[None]:
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
