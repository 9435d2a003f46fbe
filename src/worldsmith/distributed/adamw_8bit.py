"""`AdamW8bit`: AdamW with the optimizer state of large weights in 8 bits, in blocks that no sharding splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from worldsmith.distributed.state_blocks import block_size

STEP_ELEMENTS = 2**24
"""Max elements of a weight that are updated at once, which bounds the temporary memory of a step."""


class AdamW8bit(torch.optim.Optimizer):
    """AdamW that stores `exp_avg` and `exp_avg_sq` of large weights in 8 bits per element, as torchao and bitsandbytes.

    - A block of up to 256 elements has a float32 scale (`exp_avg_scale`, `exp_avg_sq_scale`), its max absolute value;
      each element is the nearest of 256 levels times the scale. The step computes in float32.
    - A block lies within a row (an index of the first dimension), and `block_size` selects the weights by their
      complete shape. FSDP shards rows, so the state is the same for any number of ranks, bit for bit. The optimizer of
      torchao selects by the shape of a shard: with another number of ranks, other state is in 8 bits.
    - Other weights, such as biases, have state of their own dtype.

    Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.

    Args:
        groups: Parameter groups, as for `torch.optim.AdamW`.
        lr: Learning rate.
        betas: Decay rates of `exp_avg` and `exp_avg_sq`.
        eps: Term added to the denominator.
        weight_decay: Decoupled weight decay.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._levels: dict[tuple[str, torch.device], Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates all parameters that have a gradient.

        Args:
            closure: Computes loss and gradients; None: the gradients are ready.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(new_state(parameter))
                state["step"] += 1
                tensors = {name: local_rows(value) for name, value in state.items() if name != "step"}
                weight, grad = local_rows(parameter), local_rows(parameter.grad)
                count = max(1, STEP_ELEMENTS // max(1, math.prod(weight.shape[1:])))
                for first in range(0, weight.shape[0] if weight.ndim else 1, count):
                    rows = slice(first, first + count) if weight.ndim else ...
                    parts = {name: value[rows] for name, value in tensors.items()}
                    self._update(weight[rows], grad[rows], parts, state["step"], group)
        return loss

    def _update(
        self, weight: Tensor, grad: Tensor, state: Mapping[str, Tensor], step: Tensor, group: Mapping[str, Any]
    ) -> None:
        """Changes rows of a weight and of its state by step number `step`, with the settings of its group."""
        lr, (beta1, beta2), gradient = torch.tensor(float(group["lr"])), group["betas"], grad.float()
        exp_avg = self._read(state, "exp_avg").lerp_(gradient, 1 - beta1)
        exp_avg_sq = self._read(state, "exp_avg_sq").lerp_(gradient.square(), 1 - beta2)
        self._write(state, "exp_avg", exp_avg)
        self._write(state, "exp_avg_sq", exp_avg_sq)
        denominator = exp_avg_sq.sqrt_().div_((1 - beta2**step).sqrt()).add_(group["eps"])
        decayed = weight.float().sub(lr * group["weight_decay"] * weight.float())
        weight.copy_(decayed.sub_(exp_avg.div_(1 - beta1**step).mul_(lr).div_(denominator)))

    def _read(self, state: Mapping[str, Tensor], name: str) -> Tensor:
        """Returns a copy of `exp_avg` or `exp_avg_sq` in float32."""
        stored, scale = state[name], state.get(f"{name}_scale")
        if scale is None:
            return stored.to(torch.float32, copy=True)
        blocks = self._table(name, stored.device)[stored.int()].reshape(*scale.shape, -1)
        return blocks.mul_(scale[..., None]).view(stored.shape)

    def _write(self, state: Mapping[str, Tensor], name: str, value: Tensor) -> None:
        """Replaces `exp_avg` or `exp_avg_sq` in place, rounded to the dtype or to the 8-bit levels of the state."""
        scale = state.get(f"{name}_scale")
        if scale is None:
            state[name].copy_(value)
            return
        blocks, table = value.view(*scale.shape, -1), self._table(name, value.device)
        scale.copy_(blocks.abs().amax(-1).clamp_(min=1e-12))
        middles = (table[1:] + table[:-1]) / 2
        codes = torch.bucketize(blocks / scale[..., None], middles, out_int32=True, right=True)
        state[name].copy_(codes.view(value.shape))

    def _table(self, name: str, device: torch.device) -> Tensor:
        """Returns `levels` on a device, for `exp_avg` with sign."""
        if (name, device) not in self._levels:
            self._levels[name, device] = levels(signed=name == "exp_avg").to(device)
        return self._levels[name, device]


def local_rows(tensor: Tensor) -> Tensor:
    """Returns this rank's shard of a tensor (same memory); a tensor that is not a DTensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def new_state(parameter: Tensor) -> dict[str, Tensor]:
    """Returns the optimizer state of a parameter before its first step, sharded like the parameter."""
    parameter, size = parameter.detach(), block_size(parameter.shape)
    state = {"step": torch.tensor(0.0)}
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros_like(parameter, dtype=torch.uint8 if size else None)
        if size:
            first = parameter.flatten(1)[:, : math.prod(parameter.shape[1:]) // size]
            kept = torch.contiguous_format
            state[f"{name}_scale"] = torch.zeros_like(first, dtype=torch.float32, memory_format=kept)
    return state


def levels(*, signed: bool) -> Tensor:
    """Returns the 256 levels of a block whose max is 1, ascending: 0, 1 and seven decades between 1e-7 and 1.

    Each decade has twice as many levels as the decade below, so the largest values have the smallest relative error.

    Args:
        signed: Whether half of the levels are negative.
    """
    found = [torch.tensor([0.0, 1.0])]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1)
        middles = 10.0 ** (decade - 6) * ((edges[1:] + edges[:-1]) / 2)
        found += [middles, -middles] if signed else [middles]
    return torch.cat(found).sort().values
