"""The allocator of torch reads the setting for expandable segments, unless the user has configured the allocator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from worldsmith.distributed.memory import ALLOCATOR_VARIABLES

PROGRAM = """
import torch
from worldsmith.distributed.memory import use_expandable_segments
use_expandable_segments()
print(torch._C._accelerator_getAllocatorSettings())
"""


@pytest.mark.parametrize("variable", [None, *ALLOCATOR_VARIABLES[:2]])
def test_the_allocator_uses_expandable_segments_unless_it_is_configured(variable: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_VARIABLES}
    if variable:
        environment[variable] = "max_split_size_mb:512"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == ("max_split_size_mb:512" if variable else "expandable_segments:True")
