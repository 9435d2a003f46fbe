"""Context parallelism (Ulysses): the ranks of a group share the tokens of one pack, and its heads inside attention.

Each of the two token streams is padded to a multiple of the group size and split into consecutive shards. Before
attention, one all-to-all gathers all tokens for a shard of the heads; after attention, another one returns all heads of
the rank's own tokens (Jacobs et al. 2023, arXiv:2309.14509). Gradients equal those of one rank that has all tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from worldsmith.distributed.world import World


@dataclass(frozen=True, slots=True)
class SharedStream:
    """Stream of `length` tokens that is sharded over a context-parallel group; implements the protocol `TokenSharding`.

    Methods that are marked "Collective" must be called by all ranks of the group.
    """

    group: dist.ProcessGroup
    length: int

    @property
    def ranks(self) -> int:
        """Number of ranks of the group."""
        return self.group.size()

    @property
    def own_length(self) -> int:
        """Number of tokens of the stream that each rank has, including padding."""
        return -(-self.length // self.ranks)

    def shard(self, tokens: Tensor, fill: float = 0) -> Tensor:
        """Returns this rank's shard [own_length, …] of the complete stream [length, …], padded with `fill`."""
        start = self.group.rank() * self.own_length
        return self.padded(tokens, fill)[start : start + self.own_length]

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Exchanges token shards (all heads) for head shards (all tokens) with one all-to-all. Collective.

        Args:
            tensors: Token shards [own_length, heads, d]. Heads are repeated if there are fewer heads than ranks.

        Returns:
            A head shard [length, heads per rank, d] for each argument.
        """
        shares = [self.head_shares(tensor) for tensor in tensors]
        sent = torch.cat(shares, dim=2).transpose(0, 1)
        received = AllToAll.apply(sent, self.group).flatten(0, 1)[: self.length]
        return received.split([share.shape[2] for share in shares], dim=1)

    def to_tokens(self, attended: Tensor) -> Tensor:
        """Returns the token shard [own_length, heads, d] for a head shard [length, heads per rank, d]. Collective."""
        sent = self.padded(attended).unflatten(0, (self.ranks, self.own_length))
        return AllToAll.apply(sent, self.group).transpose(0, 1).flatten(1, 2)

    def gather(self, tokens: Tensor) -> Tensor:
        """All-gathers the token shards [own_length, …] into the stream [length, …], without padding. Collective."""
        return Gather.apply(tokens, self.group)[: self.length]

    def take(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Returns the tokens with these indices in the stream, [k, …]; those of other ranks have arbitrary values.

        Args:
            tokens: This rank's tokens [own_length, …].
            index: Indices in the stream, int64 [k].
        """
        return tokens.index_select(0, self.own_index(index).clamp(max=self.own_length - 1))

    def place(self, tokens: Tensor, index: Tensor, values: Tensor) -> Tensor:
        """Returns a copy of this rank's tokens in which `values` [k, …] replace those with these indices."""
        # One more row receives the values of the tokens of other ranks.
        spare = torch.cat((tokens, tokens.new_zeros(1, *tokens.shape[1:])))
        return spare.index_copy(0, self.own_index(index), values)[: self.own_length]

    def own_index(self, index: Tensor) -> Tensor:
        """Converts indices in the stream to indices in this rank's shard; `own_length` for tokens of other ranks."""
        own = index - self.group.rank() * self.own_length
        return torch.where((own >= 0) & (own < self.own_length), own, self.own_length)

    def head_shares(self, tensor: Tensor) -> Tensor:
        """Reshapes [n, heads, d] to [n, ranks, heads per rank, d]; repeats heads if they are fewer than ranks."""
        if tensor.shape[1] < self.ranks:
            tensor = tensor.repeat_interleave(self.ranks // tensor.shape[1], dim=1)
        return tensor.unflatten(1, (self.ranks, -1))

    def padded(self, tokens: Tensor, fill: float = 0) -> Tensor:
        """Returns a stream [length, …], padded with `fill` to [ranks · own_length, …]."""
        missing = self.ranks * self.own_length - self.length
        return F.pad(tokens, (0, 0) * (tokens.ndim - 1) + (0, missing), value=fill) if missing else tokens


class AllToAll(torch.autograd.Function):
    """Differentiable all-to-all of blocks [ranks, …]: block i goes to rank i. Backward is an all-to-all, too."""

    @staticmethod
    def forward(ctx: Any, blocks: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return all_to_all(blocks, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_to_all(grad, ctx.group), None


class Gather(torch.autograd.Function):
    """Differentiable all-gather of the rows [n, …] of all ranks, in rank order, to [ranks · n, …].

    All ranks then compute the same loss, so each rank has the gradient of all rows; backward returns that of the rank's
    rows, multiplied by the number of ranks. FSDP averages gradients over all ranks, but within a context-parallel
    group the gradient is the sum over the ranks.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = rows.new_empty(group.size() * rows.shape[0], *rows.shape[1:])
        dist.all_gather_into_tensor(gathered, rows.contiguous(), group=group)
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.chunk(ctx.group.size())[ctx.group.rank()] * ctx.group.size(), None


def all_to_all(blocks: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sends block i of `blocks` [ranks, …] to rank i of `group`; returns the received blocks by rank. Collective."""
    blocks = blocks.contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received


def divide_work(world: World, shapes: Sequence[Sequence[int]], make: Callable[[int], Tensor]) -> list[Tensor]:
    """Computes a list of tensors; the ranks of a context-parallel group divide the work and broadcast the results.

    All ranks of the group must call it with the same shapes. Without a group, this rank computes all tensors.

    Args:
        world: This process, with its context-parallel group.
        shapes: Shape of each tensor.
        make: Computes tensor i, of shape `shapes[i]`.

    Returns:
        All tensors in the order of `shapes`. With a context-parallel group they are float32.
    """
    if world.context_group is None:
        return [make(i) for i in range(len(shapes))]
    place, ranks = world.context_group.rank(), world.context_group.size()
    made = [
        make(i).float().contiguous() if i % ranks == place else torch.empty(tuple(shape), device=world.device)
        for i, shape in enumerate(shapes)
    ]
    for i, tensor in enumerate(made):
        dist.broadcast(tensor, group=world.context_group, group_src=i % ranks)
    return made


def require_same_packs(world: World, samples: Iterable[object]) -> None:
    """Raises RuntimeError if the ranks of a context-parallel group have read different samples. Collective.

    Args:
        world: This process; without a context-parallel group the function returns immediately.
        samples: Identifiers of the samples of this rank in the step, such as keys; their `repr` is compared.
    """
    if world.context_group is None:
        return
    digest = hashlib.sha256(repr(list(samples)).encode()).hexdigest()
    if len(set(world.gather_context(digest))) > 1:
        raise RuntimeError(
            f"[E121] rank {world.rank} and its context-parallel group have read different samples for the same "
            "step: one of them could not read a file that the others could read. See the quarantine lists in the "
            "run folder"
        )
