"""Activation checkpointing: a module stores only its inputs and runs its forward pass again in the backward pass.

Modules without gradients are neither stored nor recomputed, as the backward pass does not use them.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.fx.experimental.symbolic_shapes import optimization_hint
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from worldsmith.config.sections import ActivationCheckpointingConfig

logger = logging.getLogger(__name__)
T = TypeVar("T")

FUSED_ATTENTION = re.compile(
    r"scaled_dot_product|flash_attention|flash_attn|efficient_attention|varlen_attn|flex_attention"
    r"|natten\.\w*(na\dd|fmha)_forward"  # not its permutations of q, k and v, which are ops of their own
)

MATMULS = {"aten.mm.default": 1, "aten.addmm.default": 2, "aten._scaled_mm.default": 1}
"""Operators of linear layers, with the position of their argument [in, out]."""
LOW_RANK = 8
"""Min ratio of the sides of a weight with which it belongs to an adapter, whose matmuls cost little."""

FEW_KEYS = 8
"""Min ratio of the numbers of queries and keys with which an attention output is recomputed instead of saved."""

MARKS = {
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
}
"""Operators that only mark ranges for profilers, so the recomputation may run a different number of them: FSDP runs one
whenever it all-gathers the parameters of a layer."""


def recompute_methods(
    modules: Sequence[nn.Module],
    names: Sequence[str],
    config: ActivationCheckpointingConfig,
    *,
    saves_matmuls: Collection[str] = ("forward",),
) -> None:
    """Wraps methods of modules in activation checkpointing, in place; must be called before the modules are sharded.

    Call it before `compile_methods`: a method that is compiled afterwards contains its own checkpointing. Parameter
    names do not change. PyTorch checks shapes, dtypes and devices of recomputed tensors. Mode "none" changes no module.

    Args:
        modules: Layers of the network, in order, to all of which `config.mode` is applied.
        names: Names of the methods, such as "forward".
        config: Mode and settings of activation checkpointing.
        saves_matmuls: Names of the methods to which `save_every_second_matmul` applies: those that are compiled as a
            whole, because operators cannot be saved if the compiled code is only a part of the method.
    """
    if config.mode == "none" or not modules:
        return
    SAC_IGNORED_OPS.update(MARKS)
    saved = SavedOps(config) if config.mode == "selective" else None
    policies = {name: None if saved is None else partial(saved.contexts, name in saves_matmuls) for name in names}
    for module in modules:
        for name in names:
            setattr(module, name, recomputed(getattr(module, name), config, policies[name]))
    if saved is not None:
        modules[-1].register_forward_hook(lambda *_: saved.report_unused())


def divide_layers(
    layers: Sequence[nn.Module], config: ActivationCheckpointingConfig
) -> Iterator[tuple[Sequence[nn.Module], ActivationCheckpointingConfig]]:
    """Yields the layers in the fraction `config.layer_fraction` and the others, each with a config of their mode."""
    chosen = spread_evenly(layers, config.layer_fraction)
    yield chosen, config
    yield [layer for layer in layers if layer not in chosen], replace(config, mode=config.other_layers)


def spread_evenly(modules: Sequence[T], fraction: float) -> list[T]:
    """Returns the given fraction of the modules, rounded up, at equal distances, beginning with the first one."""
    count = math.ceil(fraction * len(modules) - 1e-9)
    return [modules[index * len(modules) // count] for index in range(count)]


def recomputed(
    method: Any, config: ActivationCheckpointingConfig, context_fn: partial[Any] | None = None
) -> Callable[..., Any]:
    """Returns a method that calls `method` with activation checkpointing; torch.compile can compile it.

    Args:
        method: Bound method whose activations are recomputed in the backward pass.
        config: Settings of activation checkpointing.
        context_fn: Returns the contexts of selective checkpointing; None: all activations are recomputed.
    """
    # Layers share one compilation only if the code refers to nothing of one layer, such as a bound method.
    function, compare = method.__func__, config.determinism_check == "match"
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": config.preserve_rng_state}
    if context_fn is not None:
        settings["context_fn"] = context_fn
    if compare:
        settings["early_stop"] = False

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = partial(function, self)
        return checkpoint(TwoRuns(bound) if compare else bound, *args, **settings, **kwargs)

    def run_offloaded(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = partial(call, partial(function, self), list(kwargs))
        with save_on_cpu(pin_memory=torch.cuda.is_available()):  # which moves positional arguments only
            return checkpoint(TwoRuns(bound) if compare else bound, *args, *kwargs.values(), **settings)

    if config.offload:
        return MethodType(run_offloaded, method.__self__)

    return MethodType(run, method.__self__)


def call(function: Callable[..., Any], names: Sequence[str], *values: Any) -> Any:
    """Calls `function` with the last of `values` as keyword arguments `names`, and with the others by position."""
    count = len(values) - len(names)
    return function(*values[:count], **dict(zip(names, values[count:])))


class TwoRuns:
    """Callable that checks that its second call, which is the recomputation, returns the values of its first call.

    Args:
        function: Function that is checkpointed.
    """

    def __init__(self, function: partial[Any]) -> None:
        self.function = function
        self.first: Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.function(*args, **kwargs)
        self.check(result)
        return result

    def check(self, result: Any) -> None:
        """Raises RuntimeError if `result` of the recomputation differs from that of the forward pass (by checksum)."""
        sums = checksum(result)
        if self.first is None:
            self.first = sums
        elif not torch.equal(self.first, sums):
            function = self.function.args[0] if self.function.func is call else self.function
            name = getattr(function.func, "__qualname__", repr(function.func))
            raise RuntimeError(
                f"[E124] activation_checkpointing.determinism_check = 'match': {name} had different values in the "
                "backward pass than in the forward pass, so gradients would be wrong; set preserve_rng_state = "
                "true, or mode = 'none'"
            )


class SavedOps:
    """Policy of selective activation checkpointing: selects the operators whose outputs are saved.

    Each of `config.save_ops_regex` is searched in the name of an operator, such as `aten.mm.default`. `fmha` (fused
    multi-head attention) is an additional name of every fused attention operator on all devices. Attention to far fewer
    keys than queries, such as cross-attention to a text, is recomputed in any case. With
    `config.save_every_second_matmul`, the first, third, … large matmul of each call of a method are saved too.

    An operator that writes into its arguments (`aten.mm.out`) is never saved, because compiled code reuses that memory.
    """

    def __init__(self, config: ActivationCheckpointingConfig) -> None:
        self.patterns = [re.compile(pattern) for pattern in config.save_ops_regex]
        self.saves_matmuls = config.save_every_second_matmul
        self.seen: dict[str, list[re.Pattern[str]]] = {}
        """Names of the operators that have run, and the patterns that match them."""
        self.reported = False

    def contexts(self, matmuls: bool) -> tuple[Any, Any]:
        """Returns the contexts of the forward pass and of the recomputation, for one call of a method.

        `matmuls`: whether matmuls are saved too, if the config has `save_every_second_matmul`.
        """
        counts = Counter[str]() if matmuls and self.saves_matmuls else None
        return create_selective_checkpoint_contexts(partial(self.select, counts))

    def select(
        self, matmuls: Counter[str] | None, context: Any, op: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        """Returns whether the output of the operator `op` is saved or recomputed.

        Args:
            matmuls: Number of large matmuls of this call of the method so far, updated in place; None: none is saved.
            context: Unused.
            op: Operator overload.
            args: Positional arguments of the operator.
            kwargs: Unused.
        """
        name = str(op)
        if name not in self.seen:
            label = f"{name} fmha" if FUSED_ATTENTION.search(name) else name
            self.seen[name] = [] if writes(op) else [pattern for pattern in self.patterns if pattern.search(label)]
        save = bool(self.seen[name]) and not ("scaled_dot_product" in name and has_few_keys(args[0], args[1]))
        if matmuls is not None and name in MATMULS and is_large(args[MATMULS[name]]):
            matmuls["large"] += 1
            save = save or matmuls["large"] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    def report_unused(self) -> None:
        """Logs a warning about patterns that match none of the operators that have run; only once.

        Raises:
            ValueError: If no pattern matches an operator and no matmul is saved.
        """
        if self.reported or not self.seen:  # without gradients, no operator is selected
            return
        self.reported = True
        used = {pattern for patterns in self.seen.values() for pattern in patterns}
        unused = [pattern.pattern for pattern in self.patterns if pattern not in used]
        if not unused:
            return
        ops = ", ".join(sorted(self.seen))
        if not used and not self.saves_matmuls:
            raise ValueError(
                f"activation_checkpointing.save_ops_regex {unused} matches none of the ops that ran, so no "
                f'activation is saved; use ["fmha"], or mode = "full". These ops ran: {ops}'
            )
        logger.warning("activation_checkpointing.save_ops_regex: %s matches none of the ops that ran: %s", unused, ops)


def has_few_keys(query: Tensor, key: Tensor) -> bool:
    """Returns whether there are far fewer keys than queries, as in attention to a text, which costs little.

    Args:
        query: Queries [batch, heads, length, d]; a compiled layer has the length of its first call.
        key: Keys [batch, heads, length, d].
    """
    return optimization_hint(key.shape[-2]) * FEW_KEYS <= optimization_hint(query.shape[-2])


def is_large(weight: Tensor) -> bool:
    """Returns whether neither side of this matrix [in, out] is far smaller, as in the matmuls of an adapter."""
    short, long = sorted(weight.shape)
    return short * LOW_RANK > long


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
