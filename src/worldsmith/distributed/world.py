"""The processes of a run: rank, number of ranks, device and the collectives on Python objects."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worldsmith.distributed.coordination_group import PATIENCE
from worldsmith.distributed.launcher_messages import max_world_size
from worldsmith.distributed.memory import use_expandable_segments

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

SAY_AFTER = 30.0
"""Seconds after which rank 0 logs that it is still waiting for other processes to start."""


@dataclass(frozen=True, slots=True)
class World:
    """Rank and device of this process, number of ranks, and collectives. A run of one process has no process group.

    Methods that are marked "Collective" must be called by all ranks.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    context_group: ProcessGroup | None = field(default=None, compare=False)
    """Context-parallel group: consecutive ranks, including this one, that process the same packs; None: no group."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def context_parallel(self) -> int:
        """Context-parallel degree: number of ranks that process the same packed batches; 1: no context parallelism."""
        return 1 if self.context_group is None else self.context_group.size()

    @property
    def data_rank(self) -> int:
        """Index of the data shard that this rank reads; the ranks of a context-parallel group read the same shard."""
        return self.rank // self.context_parallel

    @property
    def data_size(self) -> int:
        """Number of data shards: number of ranks divided by the context-parallel degree."""
        return self.size // self.context_parallel

    def barrier(self) -> None:
        """Waits for all ranks. Collective."""
        if self.size > 1:
            import torch.distributed as dist

            dist.barrier()

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's `value` on every rank. Collective."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank, in rank order, on all ranks. Collective."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def gather_context(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank of the context-parallel group, in rank order. Collective in the group."""
        if self.context_group is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.context_group.size()
        dist.all_gather_object(values, value, group=self.context_group)
        return values

    def sum(self, *values: float) -> list[float]:
        """Returns the sum over all ranks of each argument, computed in float64, on all ranks. Collective.

        The sum uses gloo on the CPU, so that it does not wait for the GPU.
        """
        if self.size == 1:
            return [float(value) for value in values]
        import torch
        import torch.distributed as dist

        totals = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(totals)
        return totals.tolist()

    def data_sum(self, *values: float) -> list[float]:
        """Returns the sum of each argument over all data shards, computed in float64, on all ranks. Collective.

        The ranks of a context-parallel group have the same data, so each group counts once.
        """
        return [total / self.context_parallel for total in self.sum(*values)]

    def any(self, flag: bool) -> bool:
        """Returns, on all ranks, whether `flag` is True on at least one rank. Collective."""
        return self.sum(float(flag))[0] > 0


def world_size() -> int:
    """Returns the number of processes of the run from WORLD_SIZE, which the launcher sets; 1 if it is not set."""
    return _environment_int("WORLD_SIZE", 1)


def launched_as() -> tuple[int, int, int]:
    """Returns (rank, number of ranks, local rank) from the environment variables RANK, WORLD_SIZE and LOCAL_RANK."""
    return _environment_int("RANK", 0), world_size(), _environment_int("LOCAL_RANK", 0)


def start_world(*, context_parallel: int = 1) -> World:
    """Selects the device of this process and joins the process group. Collective if WORLD_SIZE is greater than 1.

    Args:
        context_parallel: Number of consecutive ranks that form a context-parallel group; must divide the number of
            ranks.

    Returns:
        This process with its rank and device. A run of one process has no process group.

    Raises:
        ValueError: If an environment variable of torchrun is missing or invalid, or if the machine has GPUs, but fewer
            than processes.
    """
    import torch.distributed as dist

    size = world_size()
    device = take_device(_environment_int("LOCAL_RANK", 0))
    if size == 1:
        return World(device=device)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(
            f"[E112] WORLD_SIZE is {size}, but {', '.join(missing)} is not set; start several processes with "
            "`worldsmith launch --nproc-per-node N train …`, or unset WORLD_SIZE for one process"
        )
    if not dist.is_initialized():
        join_process_group(device, size)
    share = context_parallel > 1
    group = dist.new_subgroups(group_size=context_parallel, timeout=PATIENCE)[0] if share else None
    return World(rank=dist.get_rank(), size=dist.get_world_size(), device=device, context_group=group)


def join_process_group(device: str, size: int) -> None:
    """Creates the default process group of the run, and waits until all its processes have joined.

    Keys in the store begin with the ID and the restart count of the launch, so processes of an earlier start at the
    same address do not join. With `--nnodes MIN:MAX` the counts of the launchers differ, but each start has a new
    store. Rank 0 logs a warning if other processes are missing after `SAY_AFTER` seconds.

    Args:
        device: Device of this process, such as "cuda:0" or "cpu".
        size: Number of processes of the run.
    """
    import torch.distributed as dist

    store, rank, _ = next(dist.rendezvous("env://", timeout=PATIENCE))
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")[: 2 if max_world_size() is None else 1]
    launch = [os.environ.get(name, "") for name in names]
    store = dist.PrefixStore("/".join(["worldsmith", *launch]), store)
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    timer = threading.Timer(SAY_AFTER, logger.warning, ("waiting for all %d processes to connect to %s", size, place))
    timer.daemon = True
    if rank == 0:
        timer.start()
    try:
        dist.init_process_group(backends(device), store=store, rank=rank, world_size=size, timeout=PATIENCE)
    finally:
        timer.cancel()


def backends(device: str) -> str:
    """Returns the backends argument of `init_process_group` for a device such as "cuda:0" or "cpu".

    NCCL is used for CUDA tensors; gloo for CPU tensors and objects, barriers and checkpoint plans.
    """
    return "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"


def take_device(local_rank: int) -> str:
    """Makes GPU `local_rank` the current device and returns its name, such as "cuda:0"; "cpu" if there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    require_devices(local_rank + 1)
    use_expandable_segments()
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def present_device() -> str:
    """Returns the device for a single process on this machine: "cuda:0", or "cpu" if there is no GPU."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def require_devices(processes: int) -> None:
    """Raises ValueError if this machine has GPUs, but fewer than `processes`, the number of processes on it."""
    import torch

    count = torch.cuda.device_count()
    if 0 < count < processes:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ValueError(
            f"[E113] {processes} processes on this machine need one GPU each, found "
            f"{count}{'' if visible is None else f' (CUDA_VISIBLE_DEVICES is {visible!r})'}; start {count} on each "
            f"machine: --nproc-per-node {count}, for the example scripts NPROC_PER_NODE={count}"
        )


def device_remarks(processes: int) -> list[str]:
    """Returns [a warning] if `processes`, the number of processes to start, exceeds the GPUs of this machine; else [].

    Machines without GPUs cause no warning.
    """
    import torch

    count = torch.cuda.device_count()
    if not 0 < count < processes:
        return []
    gpus = f"{count} GPU{'s' * (count > 1)}"
    return [f"this machine has {gpus}, but {processes} processes need {-(-processes // count)} such machines"]


def ensure_process_group(world: World) -> None:
    """Creates the default process group with one rank if none exists, for a device mesh; opens no port."""
    import torch.distributed as dist

    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backends(world.device), store=store, rank=0, world_size=1)


def stop_world() -> None:
    """Destroys the default process group, if it exists."""
    if "torch.distributed" not in sys.modules:  # also when its import was what failed
        return
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def local_size() -> int:
    """Returns the number of processes of the run on this machine."""
    return _environment_int("LOCAL_WORLD_SIZE", 1)


def gather_tensors(tensor: Tensor, group: ProcessGroup) -> list[Tensor]:
    """Returns the tensors of all ranks of a process group, in rank order, on all its ranks.

    All ranks of the group must call it with a tensor of the same shape and dtype.
    """
    import torch
    import torch.distributed as dist

    tensors = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(tensors, tensor.contiguous(), group=group)
    return tensors


def _environment_int(name: str, default: int) -> int:
    """Returns the integer in the environment variable `name`, or `default` if it is not set.

    Raises:
        ValueError: If the value is not an integer or is below `default`.
    """
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < default:
        raise ValueError(f"environment variable {name}: expected an integer, at least {default}, found {text!r}")
    return int(text)
