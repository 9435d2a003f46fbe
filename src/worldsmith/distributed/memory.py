"""Memory use of a process and free memory of the machine, a container or a GPU."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables of PyTorch's caching allocator, which reads them at its first allocation."""
CGROUP = Path("/sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current", "inactive_file"),
          ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"))  # fmt: skip
"""For cgroups v2 and v1: file with the memory limit, file with the usage, and the key in memory.stat of the reclaimable
file cache, which is included in the usage."""


def use_expandable_segments() -> None:
    """Makes the CUDA allocator of this process and its child processes use expandable segments, against fragmentation.

    Packed batches have different sizes, which fragments memory in segments of fixed size. The function has no effect
    after the first allocation on a GPU, or if a variable of `ALLOCATOR_VARIABLES` is set.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"


def held_memory(device: str) -> int:
    """Returns the memory in bytes that this process uses: allocated tensors on "cuda:0", resident set size on "cpu"."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.memory_allocated(device)
    import psutil

    return psutil.Process().memory_info().rss  # type: ignore[no-any-return]


def free_memory(device: str, *, group: Path = CGROUP) -> int:
    """Returns the free memory of a device in bytes.

    Args:
        device: "cpu" or a CUDA device such as "cuda:0".
        group: Mount point of cgroups, with the memory limit of the container, which limits the result for "cpu".
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    free: int = psutil.virtual_memory().available
    within = free_in_group(group)
    return free if within is None else min(free, within)


def free_in_group(group: Path) -> int | None:
    """Returns the free memory in bytes within the container's memory limit, from cgroup files; None without a limit.

    Args:
        group: Mount point of cgroups, such as /sys/fs/cgroup.
    """
    for limit, used, droppable in LIMITS:
        try:
            most, now = (int((group / name).read_text()) for name in (limit, used))
            figures = dict(line.split() for line in ((group / used).parent / "memory.stat").read_text().splitlines())
            return max(0, most - now + int(figures.get(droppable, 0)))
        except (OSError, ValueError):  # another version of control groups, none, or "max"
            continue
    return None


def pin(buffer: Tensor) -> bool:
    """Page-locks a buffer so that a GPU can copy into it directly; logs a warning and returns False if that fails."""
    import torch

    code = int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0))
    if code != 0:
        with suppress(RuntimeError):  # the next kernel would report the error of that call
            torch.zeros(1, device="cuda")
        size = buffer.nbytes / 2**30
        logger.warning("%.1f GiB of host RAM cannot be page-locked (CUDA error %d), so copies are slower", size, code)
    return code == 0


def pinned_bytes(size: int) -> int:
    """Returns the bytes that PyTorch's allocator of page-locked memory takes for a tensor of `size` bytes."""
    return 1 << (size - 1).bit_length() if size else 0


def unpin(buffer: Tensor) -> None:
    """Reverts `pin`."""
    import torch

    torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())
