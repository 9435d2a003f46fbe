"""Activation checkpointing: a module stores only its inputs and runs its forward pass again in the backward pass.

Modules without gradients are neither stored nor recomputed, as the backward pass does not use them.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.config.sections import ActivationCheckpointingConfig

logger = logging.getLogger(__name__)

FUSED_ATTENTION = re.compile(
    r"scaled_dot_product|flash_attention|flash_attn|efficient_attention|varlen_attn|flex_attention"
    r"|natten\.\w*(na\dd|fmha)_forward"  # not its permutations of q, k and v, which are ops of their own
)

MARKS = {
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
}
"""Operators that only mark ranges for profilers, so the recomputation may run a different number of them: FSDP runs one
whenever it all-gathers the parameters of a layer."""


def recompute_methods(
    modules: Sequence[nn.Module], names: Sequence[str], config: ActivationCheckpointingConfig
) -> None:
    """Wraps methods of modules in activation checkpointing, in place; must be called before the modules are sharded.

    Parameter names do not change. PyTorch checks shapes, dtypes and devices of recomputed tensors. Mode "none" changes
    no module; with `layer_fraction`, only that fraction of the modules is changed.

    Args:
        modules: Repeated layers of the network, in order.
        names: Names of the methods, such as "forward".
        config: Mode and settings of activation checkpointing.
    """
    if config.mode == "none":
        return
    SAC_IGNORED_OPS.update(MARKS)
    saved = SavedOps(config.save_ops_regex) if config.mode == "selective" else None
    for module in spread_evenly(modules, config.layer_fraction):
        for name in names:
            setattr(module, name, recomputed(getattr(module, name), config, saved))


def spread_evenly(modules: Sequence[nn.Module], fraction: float) -> list[nn.Module]:
    """Returns the given fraction of the modules, rounded up, at equal distances, beginning with the first one."""
    count = math.ceil(fraction * len(modules) - 1e-9)
    return [modules[index * len(modules) // count] for index in range(count)]


def recomputed(
    function: Callable[..., Any], config: ActivationCheckpointingConfig, saved: SavedOps | None
) -> Callable[..., Any]:
    """Returns a function that calls `function` with activation checkpointing.

    Args:
        function: Function whose activations are recomputed in the backward pass.
        config: Settings of activation checkpointing.
        saved: Policy that selects the operators whose outputs are saved; None: all activations are recomputed.
    """
    compare = config.determinism_check == "match"
    move_inputs = partial(save_on_cpu, pin_memory=torch.cuda.is_available()) if config.offload else nullcontext

    @wraps(function)
    def call(names: Sequence[str], *values: Any) -> Any:
        count = len(values) - len(names)
        return function(*values[:count], **dict(zip(names, values[count:])))

    def run(*args: Any, **kwargs: Any) -> Any:
        with move_inputs():
            return checkpoint(
                TwoRuns(partial(call, list(kwargs)), compare=compare, saved=saved),
                *args,
                *kwargs.values(),  # as arguments, since only those are moved
                use_reentrant=False,
                preserve_rng_state=config.preserve_rng_state,
                context_fn=noop_context_fn if saved is None else saved.contexts,
                early_stop=not compare,
            )

    return run


class TwoRuns:
    """Callable that runs `function`; checkpointing calls it in the forward pass, and again for the recomputation.

    Args:
        function: Function that is checkpointed.
        compare: Whether RuntimeError is raised if the two calls return different values.
        saved: Policy of selective checkpointing, whose unused patterns are reported; None: full checkpointing.
    """

    def __init__(self, function: partial[Any], *, compare: bool, saved: SavedOps | None) -> None:
        self.function, self.compare, self.saved = function, compare, saved
        self.repeated = False
        self.first: Tensor | None = None

    def __call__(self, *args: Any) -> Any:
        if self.saved is not None and self.repeated:
            self.saved.report_unused()
        result = self.function(*args)
        if self.compare:
            self.check(result)
        self.repeated = True
        return result

    def check(self, result: Any) -> None:
        """Raises RuntimeError if `result` of the recomputation differs from that of the forward pass (by checksum)."""
        sums = checksum(result)
        if self.first is None:
            self.first = sums
        elif not torch.equal(self.first, sums):
            name = getattr(self.function.func, "__qualname__", repr(self.function.func))
            raise RuntimeError(
                f"[E124] activation_checkpointing.determinism_check = 'match': {name} had different values in the "
                "backward pass than in the forward pass, so gradients would be wrong; set preserve_rng_state = "
                "true, or mode = 'none'"
            )


class SavedOps:
    """Policy of selective activation checkpointing: saves the outputs of operators whose names match a pattern.

    Each of `patterns` is a regular expression that is searched in the name of an operator, such as `aten.mm.default`.

    `fmha` (fused multi-head attention) is an additional name of every fused attention operator on all devices. An
    operator that writes into its arguments (`aten.mm.out`) is never saved, because compiled code reuses that memory.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = [re.compile(pattern) for pattern in patterns]
        self.seen: dict[str, list[re.Pattern[str]]] = {}
        """Names of the operators that have run, and the patterns that match them."""
        self.reported = False

    def __call__(self, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Returns the policy for the output of the operator `op`: it is saved if a pattern matches, else recomputed."""
        name = str(op)
        if name not in self.seen:
            label = f"{name} fmha" if FUSED_ATTENTION.search(name) else name
            fits = [] if writes(op) else [pattern for pattern in self.patterns if pattern.search(label)]
            self.seen[name] = fits
        return CheckpointPolicy.MUST_SAVE if self.seen[name] else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts(self) -> tuple[Any, Any]:
        return create_selective_checkpoint_contexts(self)

    def report_unused(self) -> None:
        """Logs a warning about patterns that match none of the operators that have run, at the first call only.

        Raises:
            ValueError: If no pattern matches an operator.
        """
        if self.reported:
            return
        self.reported = True
        used = {pattern for patterns in self.seen.values() for pattern in patterns}
        unused = [pattern.pattern for pattern in self.patterns if pattern not in used]
        if not unused:
            return
        ops = ", ".join(sorted(self.seen))
        if not used:
            raise ValueError(
                f"activation_checkpointing.save_ops_regex {unused} matches none of the ops that ran, so no "
                'activation is saved; use ["fmha"], or mode = "full". These ops ran (ops inside compiled code '
                f"cannot be selected): {ops}"
            )
        logger.warning("activation_checkpointing.save_ops_regex: %s matches none of the ops that ran: %s", unused, ops)


def writes(op: Any) -> bool:
    """Returns whether a `torch.ops` operator changes its arguments in place; False for higher-order operators."""
    schema = getattr(op, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def checksum(result: Any) -> Tensor:
    """Returns the sum and the sum of magnitudes of each tensor in nested tuples, float64 [2 · tensors]; skips None."""
    if isinstance(result, Tensor):
        values = result.detach().double()
        return torch.stack((values.sum(), values.abs().sum())).nan_to_num()
    return torch.cat([checksum(item) for item in result if item is not None])
