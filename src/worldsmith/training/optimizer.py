"""`AdamW` for the trained parameters of a run, and `LossScaler`: the loss scale in float16."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from worldsmith.config import Configurable, wrong
from worldsmith.config.declare.ranges import Count, DecayRate, Factor, Length, Range
from worldsmith.config.declare.search import Popular, Search
from worldsmith.config.tree.plain import class_defaults
from worldsmith.distributed.state_blocks import block_size
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

logger = logging.getLogger(__name__)

PATTERNS = ("keys_to_select", "lr_multipliers", "keys_without_decay")
"""Config fields that contain substrings of parameter names."""
STATE_UNCHANGED = ("name", "lr", "betas", "eps", "weight_decay", "decay_vectors", "fused", *PATTERNS)
"""Config fields that do not affect the dtypes and shapes of the optimizer state."""

NEVER = 2**31 - 1
SCALER_STATE = {"scale": "loss_scale[scale]", "_growth_tracker": "loss_scale[steps]"}
"""State of `torch.amp.GradScaler`, and its names in a checkpoint."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Names of parameters that share a learning rate and a weight decay, in the order of the network's parameters."""

    lr: float
    weight_decay: float
    names: list[str]


@dataclass(frozen=True, slots=True)
class ParameterState:
    """Sizes in bytes of the optimizer state tensors of one parameter, after the first optimizer step."""

    element_bytes: tuple[int | Fraction, ...]
    """Bytes per element of the parameter of each tensor that is sharded like it, such as `exp_avg`."""
    other_bytes: tuple[int, ...]
    """Bytes of each optimizer state tensor of another shape, such as `step`."""


class AdamW(Configurable):
    """`torch.optim.AdamW` or `AdamW8bit`, with a selection of trained parameters and learning rates by parameter name.

    - `keys_to_select` freezes every parameter whose name contains none of the substrings. With LoRA, all parameters
      except the adapters are frozen before: the list may be empty, ["lora_"], or a selection of adapters.
    - `lr_multipliers`: the first substring, in the order of the table, that a name contains decides.
    - `weight_decay` applies to all parameters except those that match `keys_without_decay` and, unless `decay_vectors`,
      parameters of one dimension: biases, and weights of norms.
    - A pattern that matches no trained parameter is an error. A pattern that has no effect on some of its parameters,
      because an earlier pattern matches them, is logged.

    Attributes:
        groups: Names, learning rate and weight decay of each parameter group.
        optimizer: The torch optimizer.
    """

    class Config(Configurable.Config):
        name: Literal["AdamW", "AdamW8bit"] = "AdamW"
        """`AdamW8bit` stores the optimizer state of large weights in 8 bits: about 2 bytes per element instead of 8."""
        lr: Annotated[Factor, Search(low=1e-6, high=1e-3, log=True, on=True), Popular()] = 2e-4
        """Base learning rate."""
        betas: Annotated[list[DecayRate], Length(2, 2)] = field(default_factory=lambda: [0.9, 0.99])
        """Decay rates (beta1, beta2) of the running averages of the gradient and of its square."""
        eps: Factor = 1e-8
        """Term added to the denominator (epsilon); 1e-6 suits bfloat16 gradients."""
        weight_decay: Annotated[Factor, Search(choices=(0.0, 0.01, 0.1))] = 0.0
        """Decoupled weight decay. 0: none."""
        decay_vectors: bool = True
        """Whether one-dimensional parameters (biases and norm weights) also have weight decay."""
        keys_without_decay: list[str] = field(default_factory=list)
        """Substrings of the names of parameters without weight decay."""
        fused: bool = True
        """Whether the fused kernel is used; on devices without one, and by AdamW8bit, the plain implementation is used
        and a message is logged."""
        keys_to_select: list[str] = field(default_factory=list)
        """Substrings of the names of the parameters to train; all others are frozen. Empty: train everything."""
        lr_multipliers: dict[str, Factor] = field(default_factory=dict)
        """Factor of `lr` for parameters whose name contains the substring; the first match is used."""

        def check(self) -> None:
            for name in PATTERNS:
                if "" in getattr(self, name):
                    raise wrong(self, name, why="an empty pattern matches every parameter", remedy="remove it")

    def __init__(self, config: Config, *, network: nn.Module) -> None:
        """Freezes the parameters that are not selected, in place, and builds the optimizer for the others.

        Raises:
            ValueError: If the network has no trainable parameter, or a pattern matches no trained parameter.
        """
        config.check()
        self.config = config
        select_parameters(network, config.keys_to_select)
        named = trainable_parameters(network)
        self.groups = group_parameters(named, config, frozen_names(network))
        self.optimizer = build_adamw(
            [
                {"params": [named[name] for name in group.names], "lr": group.lr, "weight_decay": group.weight_decay}
                for group in self.groups
            ],
            config,
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Trained parameters, in the order of the optimizer."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]


def trainable_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters by internal name, in registration order."""
    return {name: p for name, p in native_parameters(network).items() if p.requires_grad}


def frozen_names(network: nn.Module) -> list[str]:
    """Returns the internal names of the parameters that are not trainable."""
    return [name for name, p in native_parameters(network).items() if not p.requires_grad]


def select_parameters(network: nn.Module, patterns: list[str]) -> None:
    """Freezes every parameter whose name contains none of the patterns; never unfreezes one.

    Args:
        network: Network, changed in place.
        patterns: Substrings of parameter names; empty: no parameter is frozen.

    Raises:
        ValueError: If the network has no trainable parameter, or a pattern matches none.
    """
    trainable = trainable_parameters(network)
    if not trainable:
        raise ValueError("all parameters of the network are frozen: there is nothing to train")
    if not patterns:
        return
    frozen = frozen_names(network)
    for pattern in patterns:
        if not any(pattern in name for name in trainable):
            raise no_match("optimizer.keys_to_select", pattern, list(trainable), frozen)
    for name, parameter in trainable.items():
        if not any(pattern in name for pattern in patterns):
            parameter.requires_grad_(False)
    chosen = sum(p.requires_grad for p in trainable.values())
    logger.info("training %d of %d parameter tensors", chosen, len(trainable) + len(frozen))


def group_parameters(named: dict[str, nn.Parameter], config: AdamW.Config, frozen: list[str]) -> list[ParameterGroup]:
    """Groups parameters by learning rate and weight decay, in order of first appearance.

    Args:
        named: Trained parameters by internal name.
        config: Learning rate, weight decay and patterns.
        frozen: Names of the parameters that are not trained, for messages.

    Raises:
        ValueError: If a pattern matches no trained parameter.
    """
    factors = factors_by_name(list(named), config.lr_multipliers, frozen)
    for pattern in config.keys_without_decay:
        if not any(pattern in name for name in named):
            raise no_match("optimizer.keys_without_decay", pattern, list(named), frozen)
    groups: dict[tuple[float, float], list[str]] = {}
    for name, parameter in named.items():
        without_decay = any(pattern in name for pattern in config.keys_without_decay)
        without_decay |= parameter.ndim < 2 and not config.decay_vectors
        rates = config.lr * factors.get(name, 1.0), 0.0 if without_decay else config.weight_decay
        groups.setdefault(rates, []).append(name)
    return [ParameterGroup(*rates, members) for rates, members in groups.items()]


def factors_by_name(names: list[str], multipliers: dict[str, float], frozen: list[str]) -> dict[str, float]:
    """Returns the learning rate multiplier of each parameter whose name contains a pattern, by name.

    Args:
        names: Names of the trained parameters.
        multipliers: Multiplier by pattern; the first pattern that a name contains is used.
        frozen: Names of the parameters that are not trained, for messages.

    Raises:
        ValueError: If a pattern matches no trained parameter.
    """
    matched: dict[str, str] = {}
    for pattern in multipliers:
        matches = [name for name in names if pattern in name]
        if not matches:
            raise no_match("optimizer.lr_multipliers", pattern, names, frozen)
        shadowed = [name for name in matches if name in matched]
        if shadowed:
            logger.warning(
                "optimizer.lr_multipliers['%s'] = %g has no effect on %d of the %d parameters that it matches, "
                "such as %s: '%s' comes first in the table and is used; put the narrower pattern first",
                *(pattern, multipliers[pattern], len(shadowed), len(matches), shadowed[0], matched[shadowed[0]]),
            )
        matched.update({name: pattern for name in matches if name not in matched})
    return {name: multipliers[pattern] for name, pattern in matched.items()}


def build_adamw(groups: list[dict[str, Any]], config: AdamW.Config) -> Optimizer:
    """Builds the optimizer of parameter groups: dicts with `params` and, optionally, `lr` and `weight_decay`.

    Uses the plain implementation, and logs it, for AdamW8bit and if the device and dtype of a parameter have no fused
    kernel.
    """
    import torch

    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.betas[0], config.betas[1]),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    if config.name == "AdamW8bit":
        from worldsmith.distributed.adamw_8bit import AdamW8bit

        if config.fused:
            logger.info("optimizer.fused: AdamW8bit has no fused kernel; the plain implementation is used")
        return AdamW8bit(groups, **options)
    kinds = {(p.device, p.dtype) for group in groups for p in group["params"]}
    lacking = sorted(f"{dtype} on {device}" for device, dtype in kinds if not has_fused_kernel(device, dtype))
    if config.fused and lacking:
        logger.warning(
            "optimizer.fused: AdamW has no fused kernel for %s; the plain implementation is used", ", ".join(lacking)
        )
    return torch.optim.AdamW(groups, fused=config.fused and not lacking, **options)


def parameter_state(config: AdamW.Config, bytes_per_element: int, shape: Sequence[int] = ()) -> ParameterState:
    """Returns the sizes of the optimizer state that AdamW keeps for one parameter.

    Of the settings of `AdamW.Config`, only `name` changes the sizes. If another setting, such as one of a subclass,
    differs from its default, this function imports torch and measures the state after one step on a parameter of 64
    elements.

    Args:
        config: Optimizer settings.
        bytes_per_element: 4 for a float32 parameter, 2 for bfloat16.
        shape: Complete shape of the parameter; only AdamW8bit depends on it.
    """
    if config.name == "AdamW8bit" and (size := block_size(shape)):
        return ParameterState((1, Fraction(4, size)) * 2, (4,))
    defaults = class_defaults(type(config))
    if all(getattr(config, name) == defaults[name] for name in defaults.keys() - STATE_UNCHANGED):
        return ParameterState((bytes_per_element,) * 2, (4,))
    import torch

    settings = replace(config, fused=False, **{name: type(getattr(config, name))() for name in PATTERNS})
    network = torch.nn.Linear(8, 8, False, "cpu", torch.float32 if bytes_per_element == 4 else torch.bfloat16)
    network.weight.grad = torch.zeros_like(network.weight)
    optimizer = settings.build(network=network).optimizer
    optimizer.step()
    state = [value for value in optimizer.state[network.weight].values() if torch.is_tensor(value)]
    return ParameterState(
        tuple(value.element_size() for value in state if value.shape == network.weight.shape),
        tuple(value.nbytes for value in state if value.shape != network.weight.shape),
    )


def has_fused_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether the fused optimizer kernel supports device and dtype.

    Runs a step on a single zero, since torch raises only in the first step.
    """
    import torch

    probe = torch.zeros(1, device=device, dtype=dtype)
    probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW([probe], fused=True).step()
    except RuntimeError:
        return False
    return True


def no_match(where: str, pattern: str, names: list[str], frozen: list[str]) -> ValueError:
    """Returns the error for a pattern that matches no trained parameter, with the most similar names.

    Args:
        where: Config field of the pattern.
        pattern: Substring of parameter names.
        names: Names of the trained parameters.
        frozen: Names of the parameters that are not trained.
    """
    matches = [name for name in frozen if pattern in name]
    if matches:
        why = ": with model.config.lora_enabled only adapters are trained" if any(map(is_adapter, names)) else ""
        return ValueError(
            f"{where}: '{pattern}' matches only frozen parameters, such as {matches[0]}, and has no effect{why}"
        )
    return ValueError(
        f"{where}: none of the names of the {len(names)} trained parameters contains '{pattern}'; similar names: "
        f"{', '.join(nearest_names(pattern, names))}"
    )


def nearest_names(pattern: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Returns up to `count` parameter names that have the name components most similar to the pattern."""
    example: dict[str, str] = {}
    for name in names:
        for part in (*name.split("."), name):
            example.setdefault(part, name)
    close = difflib.get_close_matches(pattern, example, n=count, cutoff=0.4) or list(example)[:count]
    return list(dict.fromkeys(example[part] for part in close))


class LossScaler(Configurable):
    """`torch.amp.GradScaler` over the trained parameters of a run.

    The loss of a step is multiplied by `scale`; `unscale` divides the gradients by it, before they are used. A gradient
    that is not finite, on any rank, is an overflow: the step is skipped and the scale is halved.
    """

    class Config(Configurable.Config):
        init_scale: Annotated[float, Range(gt=0, le=2.0**64)] = 65536.0
        """Initial loss scale, with model.config.precision = "float16"."""
        growth_interval: Count | None = 2000
        """Consecutive steps without overflow after which the loss scale doubles; an overflow halves it. None:
        constant."""

    def __init__(self, config: Config, *, optimizer: Optimizer, enabled: bool) -> None:
        """Builds the gradient scaler of an optimizer.

        Args:
            config: Settings of the loss scale.
            optimizer: Optimizer whose gradients are unscaled.
            enabled: False: the scale is always 1.
        """
        import torch

        config.check()
        self.config, self.optimizer = config, optimizer
        parameter = optimizer.param_groups[0]["params"][0]
        self.scaler = torch.amp.GradScaler(
            parameter.device.type,
            init_scale=config.init_scale,
            growth_interval=config.growth_interval or NEVER,
            enabled=enabled,
        )
        self.scaler.scale(torch.ones((), device=parameter.device))  # from then on it has its scale
        self.scale = float(self.scaler.get_scale())
        """Loss scale of the next step."""

    def unscale(self) -> bool:
        """Divides the gradients by the loss scale, updates the scale, and returns whether any rank has an overflow."""
        if not self.scaler.is_enabled():
            return False
        self.scaler.unscale_(self.optimizer)
        self.scaler.update()
        before, after = self.scale, float(self.scaler.get_scale())
        if self.config.growth_interval is None:
            self.scaler.update(before)
        else:
            self.scale = after
        return after < before

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state for a checkpoint; empty if the scale is constant."""
        import torch

        kept: dict[str, Any] = self.scaler.state_dict() if self.config.growth_interval else {}
        return {ours: torch.tensor(kept[key], dtype=torch.float64) for key, ours in SCALER_STATE.items() if key in kept}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores the state of `state_dict`; missing entries are left unchanged."""
        own = self.scaler.state_dict()
        found = {key: type(own[key])(state[ours]) for key, ours in SCALER_STATE.items() if key in own and ours in state}
        if found:
            self.scaler.load_state_dict({**own, **found})
            self.scale = float(self.scaler.get_scale())
