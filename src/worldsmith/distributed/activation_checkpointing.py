"""Activation checkpointing: a module stores only its inputs and runs its forward pass again in the backward pass.

Modules without gradients are neither stored nor recomputed, as the backward pass does not use them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
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
"""Op names that only serve profilers. FSDP adds one when it all-gathers a layer's weights, which a recomputation may
have to repeat."""


def recompute_methods(
    modules: Iterable[nn.Module], names: Sequence[str], config: ActivationCheckpointingConfig
) -> None:
    """Wraps methods of each module in activation checkpointing, in place; call it before sharding.

    Parameter names do not change. PyTorch checks shapes, dtypes and devices of recomputed tensors. Mode "none" changes
    no module.

    Args:
        modules: Modules whose methods are wrapped.
        names: Method names.
        config: Mode and settings of activation checkpointing. The modules of one call share the list of saved
            operators.
    """
    if config.mode == "none":
        return
    SAC_IGNORED_OPS.update(MARKS)
    saved = SavedOps(config.save_ops_regex) if config.mode == "selective" else None
    for module in modules:
        for name in names:
            setattr(module, name, recomputed(getattr(module, name), config, saved))


def recomputed(
    function: Callable[..., Any], config: ActivationCheckpointingConfig, saved: SavedOps | None
) -> Callable[..., Any]:
    """Returns `function` wrapped in activation checkpointing, without changing it."""
    compare = config.determinism_check == "match"

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            TwoRuns(partial(function, **kwargs), compare=compare, saved=saved),
            *args,
            use_reentrant=False,
            preserve_rng_state=config.preserve_rng_state,
            context_fn=noop_context_fn if saved is None else saved.contexts,
            early_stop=not compare,
        )

    return run


class TwoRuns:
    """A checkpointed call and its recomputation; raises RuntimeError if `compare` is set and their values differ."""

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
        """Raises RuntimeError if the recomputation gives values that differ from those of the first run."""
        sums = checksum(result)
        if self.first is None:
            self.first = sums
        elif not torch.equal(self.first, sums):
            name = getattr(self.function.func, "__qualname__", repr(self.function.func))
            raise RuntimeError(
                f"[E124] activation_checkpointing.determinism_check = 'match': {name} had other values in the "
                "backward pass than in the forward pass, so gradients would be wrong; set preserve_rng_state = "
                "true, or mode = 'none'"
            )


class SavedOps:
    """Policy of selective checkpointing: saves the outputs of operators whose names match a pattern.

    A pattern is a regular expression that is searched in the name, such as `aten.mm.default`.

    `fmha` (fused multi-head attention) is an additional name of every fused attention operator on all devices. An
    operator that writes into its arguments (`aten.mm.out`) is never saved, because compiled code reuses that memory.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = [re.compile(pattern) for pattern in patterns]
        self.seen: dict[str, list[re.Pattern[str]]] = {}
        """Patterns that match each op that has run."""
        self.reported = False

    def __call__(self, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Returns the policy for an operator, as `create_selective_checkpoint_contexts` requires."""
        name = str(op)
        if name not in self.seen:
            label = f"{name} fmha" if FUSED_ATTENTION.search(name) else name
            fits = [] if writes(op) else [pattern for pattern in self.patterns if pattern.search(label)]
            self.seen[name] = fits
        return CheckpointPolicy.MUST_SAVE if self.seen[name] else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts(self) -> tuple[Any, Any]:
        return create_selective_checkpoint_contexts(self)

    def report_unused(self) -> None:
        """Logs once, at the start of the first backward pass, the patterns that match no operator of the forward pass.

        Raises:
            ValueError: If no pattern matches.
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
    """Returns whether an operator changes its arguments; False for higher-order operators, which have no schema."""
    schema = getattr(op, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def checksum(result: Any) -> Tensor:
    """Returns sum and sum of magnitudes (float64) of all floating-point tensors in nested tuples."""
    if isinstance(result, Tensor):
        values = result.detach().double()
        return torch.stack((values.sum(), values.abs().sum())).nan_to_num()
    return torch.cat([checksum(item) for item in result if item is not None])
