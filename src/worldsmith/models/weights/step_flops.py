"""Floating-point operations that one training step of a network needs, by arithmetic.

What counts: matrix products of linear layers and of attention, forward and backward. A product is counted in the
backward pass only when something trained needs it. What does not count: recomputation, padding, the half of a causal
score matrix that is masked, norms, rotary positions, embeddings, the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class StepFlops:
    """Operations of one forward and backward pass; a multiplication and an addition are two."""

    linear_forward: int = 0
    linear_backward: int = 0
    attention_forward: int = 0
    attention_backward: int = 0

    @property
    def total(self) -> int:
        return self.linear_forward + self.linear_backward + self.attention_forward + self.attention_backward


class ProductCounter:
    """Adds up the products of a network that a family walks through; its parameters may be on the meta device.

    Every method says whether what comes out carries gradients, which the next one asks for.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Counts for a network with `parameters`, by internal parameter name."""
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.trained = {name for name, p in parameters.items() if p.requires_grad}
        self.flops = StepFlops()

    def linear(self, path: str, tokens: int, needs_input: bool) -> bool:
        """Adds a linear layer, with its adapter if it has one."""
        output = self.product(f"{path}.weight", tokens, needs_input)
        if f"{path}.lora_A.weight" in self.shapes:
            inner = self.product(f"{path}.lora_A.weight", tokens, needs_input)
            output |= self.product(f"{path}.lora_B.weight", tokens, inner)
        return output | (f"{path}.bias" in self.trained)

    def product(self, weight: str, tokens: int, needs_input: bool, *, share: int = 1) -> bool:
        """Adds x·Wᵀ and the products that its gradients need. Each token uses one of so many shares of the weight."""
        flops, trained = 2 * tokens * prod(self.shapes[weight]) // share, weight in self.trained
        self.flops.linear_forward += flops
        self.flops.linear_backward += flops * (needs_input + trained)
        return needs_input | trained

    def attention(
        self, width: int, own: int, other: int, q: bool, own_kv: tuple[bool, bool], other_kv: tuple[bool, bool]
    ) -> bool:
        """Adds attention over `own` and `other` (query, key) pairs, whose keys and values carry gradients or not.

        `width`: channels of all heads.
        """
        unit = 2 * width
        self.flops.attention_forward += 2 * unit * (own + other)
        (own_k, own_v), (other_k, other_v) = own_kv, other_kv
        scores = q | own_k | other_k  # dO·Vᵀ, of which the gradients of q and k are made
        of_keys = own * (own_k + own_v) + other * (other_k + other_v)
        self.flops.attention_backward += unit * ((scores + q) * (own + other) + of_keys)
        return scores | own_v | other_v

    def is_trained(self, path: str) -> bool:
        """Returns whether the module of this path has a trained weight or bias of its own."""
        return f"{path}.weight" in self.trained or f"{path}.bias" in self.trained
