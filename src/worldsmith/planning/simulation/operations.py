"""FLOPs and memory traffic of the PyTorch operators in a simulated training step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""Name of PyTorch's CPU attention operator; torch's `flop_registry` only contains the GPU operators."""
GROUPED_MM = "_grouped_mm"
"""Name of PyTorch's grouped matmul over the experts of an MoE; not in torch's `flop_registry`."""
NO_DATA_ACCESS = re.compile(r"^(new_)?empty|^lift")
"""Regex for names of operators that only allocate memory or return an alias and access no data."""


@dataclass(slots=True)
class OperationCounter:
    """Accumulates FLOPs and memory traffic over operators.

    FLOPs are counted as in `torch.utils.flop_counter`: a multiply-add is 2 FLOPs, and causal attention counts in full.
    """

    flops: int = 0
    """FLOPs of all matmuls, convolutions and attention operators."""
    recomputed_flops: int = 0
    """Part of `flops` that repeats forward work: gradient checkpointing, and scores in the attention backward."""
    attention_flops: int = 0
    """Part of `flops` in attention operators."""
    skipped_flops: int = 0
    """Part of `attention_flops` that kernels do not execute: the masked half of causal attention."""
    moved_bytes: int = 0
    """Bytes read and written by all operators except matmuls, convolutions and attention."""
    to_device_bytes: int = 0
    """Bytes of offloaded weights and other training state that are copied from host RAM to the device."""
    to_host_bytes: int = 0
    """Bytes of training state that are copied from the device to host RAM."""
    activation_copy_bytes: int = 0
    """Bytes of activations that are copied to host RAM and back, counted in both directions."""

    def extrapolate(self, start: OperationCounter, end: OperationCounter, repeats: int) -> OperationCounter:
        """Returns the counts as if the work between the snapshots `start` and `end` ran `repeats` more times."""
        counts = zip(astuple(self), astuple(start), astuple(end), strict=True)
        return OperationCounter(*(total + repeats * (after - before) for total, before, after in counts))

    def record(
        self, func: Any, args: Sequence[Any], kwargs: Any, result: Any, tensors: Sequence[Tensor], *, recomputed: bool
    ) -> None:
        """Adds the FLOPs, or else the bytes read and written, of one operator call to the counts.

        Args:
            func: Operator overload, as passed to `__torch_dispatch__`.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            result: Return value of the call.
            tensors: All tensors in `args`, `kwargs` and `result`.
            recomputed: Whether gradient checkpointing runs the operator again in the backward pass.
        """
        flops = count_operator_flops(func, args, kwargs, result)
        if flops is None:
            if func.namespace != "prim" and not NO_DATA_ACCESS.search(func.__name__):
                self.moved_bytes += sum(tensor.nbytes for tensor in tensors)
            return
        self.flops += flops
        if recomputed:
            self.recomputed_flops += flops
        if "attention" in func.__name__:
            self.attention_flops += flops
            if "backward" in func.__name__ and not recomputed:
                self.recomputed_flops += flops // 5  # one of the five matmuls of the backward recomputes the scores
            names = [argument.name for argument in func._schema.arguments]
            if {**dict(zip(names, args, strict=False)), **kwargs}.get("is_causal"):
                self.skipped_flops += flops // 2


def count_operator_flops(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> int | None:
    """Returns the FLOPs of a matmul, convolution or attention operator; None for other operators."""
    packet = func._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    name = packet.__name__ if func.namespace == "aten" else ""
    if name == GROUPED_MM:  # [tokens, k] x [experts, k, n] in the forward, [k, tokens] x [tokens, n] for the weights
        return 2 * args[0].numel() * int(args[1].shape[-1])
    if name == CPU_ATTENTION:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))  # query, key, value
    if name == f"{CPU_ATTENTION}_backward":
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))  # grad_output, query, key, value
    return None
