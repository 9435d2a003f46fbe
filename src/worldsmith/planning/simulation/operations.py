"""What the operations of a step compute and move."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""PyTorch's counter knows the kernels of a GPU alone."""
EXPERTS = "_grouped_mm"
"""The product of a mixture of experts, which the counter does not know."""
EMPTY = re.compile(r"^(new_)?empty|^lift")
"""Operations that give memory, or a tensor another name, and touch nothing."""


@dataclass(slots=True)
class OperationCounter:
    """Sums over operations. `flops` are counted as by `torch.utils.flop_counter`, a multiplication and an addition
    being two."""

    flops: int = 0
    repeated_flops: int = 0
    """Of the former, those of recomputation, also inside the kernels of attention."""
    attention_flops: int = 0
    """Of the first, those of attention."""
    skipped_flops: int = 0
    """Of those of attention the half that kernels leave out of causal attention."""
    moved_bytes: int = 0
    """Read and written by all other operations."""

    def with_repeats(self, before: OperationCounter, after: OperationCounter, repeats: int) -> OperationCounter:
        """The sums if what was counted between two moments came so many times more."""
        totals = zip(astuple(self), astuple(before), astuple(after), strict=True)
        return OperationCounter(*(total + repeats * (end - start) for total, start, end in totals))

    def note(
        self, func: Any, args: Sequence[Any], kwargs: Any, result: Any, tensors: Sequence[Tensor], *, repeated: bool
    ) -> None:
        """`tensors` are those among arguments and results; `repeated`: in a recomputation."""
        flops = count_flops(func, args, kwargs, result)
        if flops is None and (func.namespace == "prim" or EMPTY.search(func.__name__)):
            return
        if flops is None:
            self.moved_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        else:
            self.flops += flops
            is_attention = "attention" in func.__name__
            computes_scores_again = is_attention and "backward" in func.__name__
            self.repeated_flops += flops if repeated else flops // 5 * computes_scores_again  # one of five products
            if is_attention:
                self.attention_flops += flops
                self.skipped_flops += flops // 2 * is_causal(func, args, kwargs)


def is_causal(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether queries of an attention see what is before them alone."""
    names = [argument.name for argument in func._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("is_causal", False))


def count_flops(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> int | None:
    """Of a matrix product, a convolution or an attention; None for other operations."""
    packet = func._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    name = packet.__name__
    if func.namespace == "aten" and name == EXPERTS:  # rows of each expert, or their sum for its weight's gradient
        return 2 * args[0].numel() * int(args[1].shape[-1])
    if func.namespace == "aten" and name == ATTENTION:
        return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))
    if func.namespace == "aten" and name == f"{ATTENTION}_backward":
        return int(sdpa_backward_flop_count(args[0].shape, args[1].shape, args[2].shape, args[3].shape))
    return None
