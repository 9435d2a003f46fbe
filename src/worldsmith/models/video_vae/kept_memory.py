"""Memory that this process keeps for its next large tensors."""

from __future__ import annotations

import ctypes
import functools

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of settings in glibc's malloc.h."""
MOST = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, up to 2 GiB, from here on; False where the C library has no such setting.

    glibc maps tensors of 32 MiB and more anew each time, and the kernel then clears every page of them: a third of the
    time in which a narrow VAE encodes a clip on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(MMAP_MAX, 0) == 1 and mallopt(TRIM_THRESHOLD, MOST) == 1
