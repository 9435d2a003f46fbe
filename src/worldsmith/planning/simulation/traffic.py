"""What a rank sends: every collective in its order, and their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from worldsmith.planning.work import Collective, Traffic

OPS: Mapping[str, Collective] = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
OF_TOKENS = ("all_to_all", "broadcast")
"""Collectives that nothing but a shared context calls for."""
NAMESPACES = ("c10d", "_c10d_functional")


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective, as one rank called it."""

    op: Collective
    ranks: tuple[int, ...]
    payload: int
    """Bytes of the whole tensor."""
    dtype: torch.dtype
    module: str
    """In whose forward it was called; "" outside."""


class TrafficRecorder:
    """Reads collectives off the operations that a dispatch mode sees.

    `names`: what the groups of the run are called, by their ranks.
    """

    def __init__(self) -> None:
        self.trace: list[Sent] = []
        self.names: dict[tuple[int, ...], str] = {}

    def restart(self) -> None:
        self.trace = []

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], module: str) -> bool:
        """Whether the operation belongs to a collective; what it sends is kept."""
        if func.namespace not in NAMESPACES:
            return False
        op = OPS.get(func._schema.name.partition("::")[2])
        if op is not None:
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            ranks, payload = ranks_of([*args, *kwargs.values()]), max(map(nbytes, tensors))
            if func.namespace == "_c10d_functional" and op == "all_gather":
                payload *= len(ranks)  # its argument is the shard
            self.add(op, ranks, payload, tensors[0].dtype, module)
        return True

    def add(self, op: Collective, ranks: tuple[int, ...], payload: int, dtype: torch.dtype, module: str = "") -> None:
        """Notes a collective."""
        self.trace.append(Sent(op, ranks, payload, dtype, module))

    def sums(self, trace: Sequence[Sent] | None = None) -> list[Traffic]:
        """What was sent since the last restart (or this), by kind and group; nothing is sent in a group of one."""
        found: dict[tuple[Collective, tuple[int, ...]], list[int]] = {}
        for sent in self.trace if trace is None else trace:
            if len(sent.ranks) > 1:
                found.setdefault((sent.op, sent.ranks), []).append(sent.payload)
        return [
            Traffic(
                op=op,
                group=self._group(op, ranks),
                ranks=len(ranks),
                span=ranks[-1] - ranks[0] + 1,
                calls=len(payloads),
                payload=sum(payloads),
            )
            for (op, ranks), payloads in found.items()
        ]

    def _group(self, op: Collective, ranks: tuple[int, ...]) -> str:
        """What the ranks share. Those of a context may be all among which the weights are cut, too."""
        found = self.names.get(ranks, "other")
        return "context" if found == "dp_shard" and op in OF_TOKENS else found


def ranks_of(arguments: Sequence[Any]) -> tuple[int, ...]:
    """The ranks of the process group among the arguments of a collective; () where there is none."""
    for argument in arguments:
        if isinstance(argument, str):
            try:
                group = dist.distributed_c10d._resolve_process_group(argument)  # type: ignore[arg-type]
            except (RuntimeError, ValueError):  # the name of a reduction
                continue
        elif isinstance(argument, torch.ScriptObject):
            try:
                group = dist.ProcessGroup.unbox(argument)
            except (RuntimeError, TypeError):  # the kind of a reduction
                continue
        elif isinstance(argument, dist.ProcessGroup):
            group = argument
        else:
            continue
        return tuple(sorted(dist.get_process_group_ranks(group)))
    return ()


def nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
