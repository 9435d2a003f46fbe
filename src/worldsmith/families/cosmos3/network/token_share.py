"""Who holds which tokens of a stream: this rank all of them, or (context parallel) each rank of a group a share."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TokenShare(Protocol):
    """One stream of N tokens among the ranks of a group. Everything but attention works on a rank's own n tokens."""

    def shard(self, tokens: Tensor, fill: float = 0) -> Tensor:
        """This rank's rows [n, …] of a tensor [N, …] that every rank has; `fill` stands where the stream has ended."""

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """This rank's tokens with all heads [n, heads, d] to all tokens with its share of the heads [N, share, d]."""

    def to_tokens(self, attended: Tensor) -> Tensor:
        """The way back, [N, share, d] to [n, heads, d]."""

    def gather(self, tokens: Tensor) -> Tensor:
        """All ranks' tokens [n, …] as one stream [N, …] on every rank."""


class AllTokens:
    """The share of a rank that works alone: nothing moves."""

    def shard(self, tokens: Tensor, fill: float = 0) -> Tensor:
        return tokens

    def to_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    def to_tokens(self, attended: Tensor) -> Tensor:
        return attended

    def gather(self, tokens: Tensor) -> Tensor:
        return tokens


def hold_all(length: int) -> TokenShare:
    """The share of a stream of `length` tokens that is not shared."""
    return AllTokens()
