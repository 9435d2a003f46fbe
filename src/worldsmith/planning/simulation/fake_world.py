"""Simulates one rank of a run in this process: collectives send no data, tensors have no memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import _sharding_prop
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from worldsmith.distributed.world import World, stop_world
from worldsmith.planning.work import Collective

STRIDED = "_propagate_use_strided_shard_flag"
"""Name of the private DTensor function that `check_strides_once` replaces."""


@dataclass(frozen=True, slots=True)
class FakeWorld(World):
    """A simulated rank; its collectives return results as if all other ranks had passed the same Python values."""

    note: Callable[[Collective, int], None] = field(default=lambda op, payload: None, compare=False)
    """Callback with the name and the bytes of each collective of Python values; 0 bytes for arbitrary objects."""

    def barrier(self) -> None:
        pass

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        self.note("all_gather", 0)
        return [value] * self.size

    def gather_context(self, value: Any) -> list[Any]:
        return [value] * self.context_parallel

    def sum(self, *values: float) -> list[float]:
        self.note("all_reduce", 8 * len(values))
        return [float(value) * self.size for value in values]


@contextmanager
def fake_world(rank: int, size: int, *, context_parallel: int = 1) -> Iterator[FakeWorld]:
    """Context manager: makes this process the simulated rank `rank` of `size`.

    Initializes torch.distributed with the backend "fake", and destroys the process group afterwards.

    Args:
        rank: Index of the simulated rank.
        size: Number of ranks.
        context_parallel: Number of ranks in a context-parallel group.

    Raises:
        RuntimeError: If the process already has a process group.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is already a rank of a real run")
    _clear_sharding_prop_cache()  # the cache is keyed by mesh shape and would return placements of another rank
    hook = sys.excepthook  # init_process_group replaces it by one that prefixes error lines with the rank
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    sys.excepthook = hook
    try:
        with check_strides_once():
            is_shared = context_parallel > 1
            group = dist.new_subgroups(group_size=context_parallel)[0] if is_shared else None
            yield FakeWorld(rank=rank, size=size, context_group=group)
    finally:
        stop_world()


@contextmanager
def check_strides_once() -> Iterator[None]:
    """Context manager: lets DTensor check for strided shards once per operator instead of once per tensor.

    DTensor repeats the check over all tensors for each tensor of a list, which takes seconds for an optimizer update of
    1,000 parameters. Does nothing if torch lacks the private DTensor function that is replaced.
    """
    propagate, last, strided = getattr(_sharding_prop, STRIDED, None), None, False

    def check(strategy: Any, schema: Any) -> None:
        nonlocal last, strided
        if schema is not last:
            last = schema
            strided = any(isinstance(part, _StridedShard) for spec in schema.args_spec for part in spec.placements)
        if strided and propagate is not None:
            propagate(strategy, schema)

    with nullcontext() if propagate is None else replaced(_sharding_prop, STRIDED, check):
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Context manager: sets the attribute `name` of `owner` to `value` and restores it afterwards."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def fake_tensor_mode() -> FakeTensorMode:
    """Returns a fake tensor mode: new tensors have shapes but no memory; existing tensors can be used in the mode."""
    return FakeTensorMode(allow_non_fake_inputs=True)
