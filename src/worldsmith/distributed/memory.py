"""Memory use of a process and free memory of the machine, a container or a GPU."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current", "inactive_file"),
          ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"))  # fmt: skip
"""Files of cgroups v2 and v1: limit, usage, and the part of the usage that is reclaimable file cache."""


def held_memory(device: str) -> int:
    """Returns the bytes that this process uses now: allocated tensors on "cuda:0", the resident set size on "cpu"."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.memory_allocated(device)
    import psutil

    return psutil.Process().memory_info().rss  # type: ignore[no-any-return]


def free_memory(device: str, *, group: Path = CGROUP) -> int:
    """Returns the bytes that can still be allocated on a device.

    Args:
        device: "cpu" or a CUDA device such as "cuda:0".
        group: Folder of the control groups; on "cpu" the result is limited by the memory limit of the container.
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    free: int = psutil.virtual_memory().available
    within = free_in_group(group)
    return free if within is None else min(free, within)


def free_in_group(group: Path) -> int | None:
    """Returns the free bytes within a container's memory limit; None without a limit."""
    for limit, used, droppable in LIMITS:
        try:
            most, now = (int((group / name).read_text()) for name in (limit, used))
            figures = dict(line.split() for line in ((group / used).parent / "memory.stat").read_text().splitlines())
            return max(0, most - now + int(figures.get(droppable, 0)))
        except (OSError, ValueError):  # another version of control groups, none, or "max"
            continue
    return None
