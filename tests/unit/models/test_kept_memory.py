"""`keep_freed_memory`: large blocks are cleared by the kernel once, not each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from worldsmith.models.video_vae.frozen import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "kept" else None
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
for turn in range(5):
    if turn == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> tuple[str, int]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


def test_freed_blocks_are_kept():
    kept, with_it = faults("kept")
    if kept != "True":
        pytest.skip("this C library has no mallopt")
    _, without = faults("plain")
    assert without > 100, "five blocks of 64 MiB were cleared again"
    assert with_it < without / 10
