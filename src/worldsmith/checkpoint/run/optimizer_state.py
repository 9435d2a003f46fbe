"""Optimizer state by parameter name: `state.<parameter name>.<quantity>`.

Learning rates and other settings are not part of it; they come from the config and the scheduler of the run. A
parameter that never had a gradient has no state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldsmith.config.errors import UserError
from worldsmith.distributed.adamw_8bit import AdamW8bit, new_state
from worldsmith.distributed.state_blocks import block_size
from worldsmith.models.parameter_names import native_parameters


def optimizer_state(network: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Returns the optimizer state by name, such as `state.<internal parameter name>.exp_avg`; tensors are not copied.

    Args:
        network: Network whose parameters the optimizer trains, sharded or not.
        optimizer: The optimizer.
    """
    state = {}
    for name, parameter in _selected(network, optimizer).items():
        for quantity, value in optimizer.state.get(parameter, {}).items():
            state[f"state.{name}.{quantity}"] = value
    return state


def empty_optimizer_state(network: nn.Module, optimizer: Optimizer, keys: Iterable[str]) -> dict[str, Tensor]:
    """Allocates tensors into which stored optimizer state can be loaded.

    Args:
        network: Network, sharded or not.
        optimizer: Optimizer of the network.
        keys: Names of the stored tensors, such as `state.<internal parameter name>.exp_avg`.

    Returns:
        Key -> zeros: a scalar for step counts, else a tensor that is sharded like the parameter.

    Raises:
        UserError: If a key belongs to no parameter that the optimizer trains, or the state is of another optimizer.
    """
    keys, parameters = list(keys), _selected(network, optimizer)
    _require_same_optimizer(optimizer, parameters, set(keys))
    step_on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    state, foreign = {}, []
    for key in keys:
        name, _, quantity = key.removeprefix("state.").rpartition(".")
        if name not in parameters:
            foreign.append(name)
        elif quantity == "step":
            device = parameters[name].device if step_on_device else "cpu"
            state[key] = torch.zeros((), dtype=torch.float32, device=device)
        elif isinstance(optimizer, AdamW8bit):
            state[key] = new_state(parameters[name])[quantity]
        else:
            state[key] = torch.zeros_like(parameters[name])
    if foreign:
        raise UserError(
            f"[E119] the checkpoint contains optimizer state for {len(foreign)} parameters that this run does not "
            f"train, such as {foreign[0]}; restore the optimizer.keys_to_select of the run that saved it"
        )
    return state


def restore_optimizer_state(network: nn.Module, optimizer: Optimizer, state: Mapping[str, Tensor]) -> None:
    """Replaces the state of `optimizer` by the tensors in `state`, without copying them.

    Args:
        network: Network whose parameters the optimizer trains, sharded or not.
        optimizer: Optimizer to change.
        state: Name, such as `state.<internal parameter name>.exp_avg` -> tensor, sharded like the parameter.
    """
    parameters = _selected(network, optimizer)
    optimizer.state.clear()
    for key, value in state.items():
        name, _, quantity = key.removeprefix("state.").rpartition(".")
        optimizer.state[parameters[name]][quantity] = value


def _require_same_optimizer(optimizer: Optimizer, parameters: Mapping[str, Tensor], keys: Collection[str]) -> None:
    """Raises UserError if stored state of AdamW is to be loaded into AdamW8bit, or the other way round."""
    large = (name for name, parameter in parameters.items() if block_size(parameter.shape))
    expected = isinstance(optimizer, AdamW8bit) and any(f"state.{name}.exp_avg" in keys for name in large)
    if expected != any(key.endswith("_scale") for key in keys):
        stored, other = ("AdamW", "AdamW8bit") if expected else ("AdamW8bit", "AdamW")
        raise UserError(
            f"[E119] the checkpoint contains optimizer state of {stored}, but optimizer.name is {other}; restore "
            f'optimizer.name = "{stored}", or start a new run from the weights only (checkpoint.load_path)'
        )


def _selected(network: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: parameter for name, parameter in native_parameters(network).items() if id(parameter) in trained}
