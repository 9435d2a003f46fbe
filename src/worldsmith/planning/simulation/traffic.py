"""Communication of one rank: the sequence of its collectives and their totals."""

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
"""Collectives that only context parallelism calls."""
NAMESPACES = ("c10d", "_c10d_functional")


@dataclass(frozen=True, slots=True)
class Sent:
    """One call of a collective by one rank."""

    op: Collective
    ranks: tuple[int, ...]
    payload: int
    """Bytes of the full (gathered or unscattered) tensor."""
    dtype: torch.dtype
    module: str
    """Module in whose forward pass the collective was called; "" outside of modules."""


class TrafficRecorder:
    """Record of the collectives among the operators of a dispatch mode.

    Attributes:
        trace: Collectives since the last `restart`, in order.
        names: Names of the process groups by their ranks.
    """

    def __init__(self) -> None:
        self.trace: list[Sent] = []
        self.names: dict[tuple[int, ...], str] = {}

    def restart(self) -> None:
        self.trace = []

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], module: str) -> bool:
        """Records an operator call if it is a collective.

        Args:
            func: Operator overload, as passed to `__torch_dispatch__`.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            module: Name of the module whose forward pass calls the operator.

        Returns:
            True if the operator starts a collective or waits for one; only a start is recorded.
        """
        if func.namespace not in NAMESPACES:
            return False
        op = OPS.get(func._schema.name.partition("::")[2])
        if op is not None:
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            ranks, payload = ranks_of([*args, *kwargs.values()]), max(tensor.nbytes for tensor in tensors)
            if func.namespace == "_c10d_functional" and op == "all_gather":
                payload *= len(ranks)  # its argument is the shard
            self.add(op, ranks, payload, tensors[0].dtype, module)
        return True

    def add(self, op: Collective, ranks: tuple[int, ...], payload: int, dtype: torch.dtype, module: str = "") -> None:
        """Records one collective; the arguments are the fields of `Sent`."""
        self.trace.append(Sent(op, ranks, payload, dtype, module))

    def sums(self, trace: Sequence[Sent] | None = None) -> list[Traffic]:
        """Returns the total traffic by collective and group, without groups of one rank.

        Args:
            trace: Collectives to sum. None: those since the last call of `restart`.
        """
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
        """Returns the name of the process group with these ranks; "other" if it is unknown.

        If context parallelism and weight sharding use the same ranks, `op` determines which name is returned.
        """
        found = self.names.get(ranks, "other")
        return "context" if found == "dp_shard" and op in OF_TOKENS else found


def ranks_of(arguments: Sequence[Any]) -> tuple[int, ...]:
    """Returns the sorted ranks of the process group in the arguments of a collective; () if there is no group."""
    for argument in arguments:
        if isinstance(argument, str):
            try:
                group = dist.distributed_c10d._resolve_process_group(argument)  # type: ignore[arg-type]
            except (RuntimeError, ValueError):  # a reduction operator by name
                continue
        elif isinstance(argument, torch.ScriptObject):
            try:
                group = dist.ProcessGroup.unbox(argument)
            except (RuntimeError, TypeError):  # a reduction operator object
                continue
        elif isinstance(argument, dist.ProcessGroup):
            group = argument
        else:
            continue
        return tuple(sorted(dist.get_process_group_ranks(group)))
    return ()
