"""Computes the floating-point operations that one training step of a network needs from its parameter shapes.

Counted are the matmuls of linear layers and of attention, forward and backward. A matmul of the backward pass is
counted only if a trained parameter needs it. Not counted are recomputation, padding, the masked half of causal
attention, norms, rotary embeddings, embedding tables and the optimizer.
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
    """FLOPs of one forward and backward pass; a multiplication and an addition count as two."""

    linear_forward: int = 0
    linear_backward: int = 0
    attention_forward: int = 0
    attention_backward: int = 0

    @property
    def total(self) -> int:
        return self.linear_forward + self.linear_backward + self.attention_forward + self.attention_backward


class MatmulCounter:
    """Counts the matmul FLOPs of a network; a model family calls its methods in the order of the forward pass.

    The methods add to `flops`. Each returns whether the output of the counted operation carries gradients, which is the
    `needs_input` of the next layer.

    Args:
        parameters: Parameters by internal parameter name; they may be on the meta device.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.trained = {name for name, p in parameters.items() if p.requires_grad}
        self.flops = StepFlops()

    def linear(self, path: str, tokens: int, needs_input: bool) -> bool:
        """Counts a linear layer, and its LoRA adapter if it has one.

        Args:
            path: Path of the layer.
            tokens: Number of input rows.
            needs_input: Whether the input carries gradients.

        Returns:
            Whether the output carries gradients.
        """
        output = self.product(f"{path}.weight", tokens, needs_input)
        if f"{path}.lora_A.weight" in self.shapes:
            inner = self.product(f"{path}.lora_A.weight", tokens, needs_input)
            output |= self.product(f"{path}.lora_B.weight", tokens, inner)
        return output | (f"{path}.bias" in self.trained)

    def product(self, weight: str, tokens: int, needs_input: bool, *, share: int = 1) -> bool:
        """Counts the matmul x·Wᵀ and, in the backward pass, those of the gradients of x and W that are needed.

        Args:
            weight: Internal parameter name of W [out, in].
            tokens: Number of rows of x.
            needs_input: Whether x carries gradients.
            share: Number of equal parts of W, such as experts; each token uses one part.

        Returns:
            Whether the output carries gradients.
        """
        flops, trained = 2 * tokens * prod(self.shapes[weight]) // share, weight in self.trained
        self.flops.linear_forward += flops
        self.flops.linear_backward += flops * (needs_input + trained)
        return needs_input | trained

    def attention(
        self, width: int, own: int, other: int, q: bool, own_kv: tuple[bool, bool], other_kv: tuple[bool, bool]
    ) -> bool:
        """Counts attention between queries and two groups of keys, each with or without gradients.

        Args:
            width: Channels of all heads.
            own: Number of (query, key) pairs with the first group of keys.
            other: Number of (query, key) pairs with the second group of keys; 0: one group only.
            q: Whether queries carry gradients.
            own_kv: Whether (keys, values) of the first group carry gradients.
            other_kv: Whether (keys, values) of the second group carry gradients.

        Returns:
            Whether the output carries gradients.
        """
        unit = 2 * width
        self.flops.attention_forward += 2 * unit * (own + other)
        (own_k, own_v), (other_k, other_v) = own_kv, other_kv
        scores = q | own_k | other_k  # dO·Vᵀ, of which the gradients of q and k are made
        of_keys = own * (own_k + own_v) + other * (other_k + other_v)
        self.flops.attention_backward += unit * ((scores + q) * (own + other) + of_keys)
        return scores | own_v | other_v

    def is_trained(self, path: str) -> bool:
        """Returns whether the module at `path` has a trained weight or bias of its own."""
        return f"{path}.weight" in self.trained or f"{path}.bias" in self.trained
