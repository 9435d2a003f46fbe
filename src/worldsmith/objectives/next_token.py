"""`NextToken`: cross-entropy of the supervised tokens, as mean over all supervised tokens of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from worldsmith.config.declare.ranges import Count
from worldsmith.objectives.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor


class NextToken(Objective):
    """Next-token cross-entropy. Logits are computed only at supervised positions, in chunks, in float32."""

    class Config(Objective.Config):
        chunk_tokens: Count = 1024
        """Max number of tokens whose logits are in memory at once. If a batch has more, the logits of each chunk are
        recomputed in the backward pass."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def loss_sum(self, states: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """Computes the sum of -log p(target) over the supervised tokens.

        Args:
            states: Hidden states from which the tokens are predicted, [S, width].
            targets: Token ids to predict, [S].
            head: Maps hidden states [n, width] to logits [n, vocabulary].

        Returns:
            Scalar, float32, with gradients to `states` and the parameters of `head`.
        """
        import torch
        from torch.nn import functional as F
        from torch.utils.checkpoint import checkpoint

        def chunk_loss(states: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(head(states).float(), targets, reduction="sum")

        size = self.config.chunk_tokens
        if len(targets) <= size:
            return chunk_loss(states, targets)
        chunks = zip(states.split(size), targets.split(size))
        losses = [checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks]
        return torch.stack(losses).sum()
