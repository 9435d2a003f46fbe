"""Optimizer state by parameter name: `state.<parameter name>.<quantity>`.

Learning rates and other settings are not part of it; they come from the config and the scheduler of the run. A
parameter that never had a gradient has no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from worldsmith.config.errors import UserError
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


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
        Key -> zeros: a scalar for step counts, else a tensor like the (sharded) parameter.

    Raises:
        UserError: If a key belongs to no parameter that the optimizer trains.
    """
    parameters = _selected(network, optimizer)
    step_on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    state, foreign = {}, []
    for key in keys:
        name, _, quantity = key.removeprefix("state.").rpartition(".")
        if name not in parameters:
            foreign.append(name)
        elif quantity == "step":
            device = parameters[name].device if step_on_device else "cpu"
            state[key] = torch.zeros((), dtype=torch.float32, device=device)
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


def _selected(network: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: parameter for name, parameter in native_parameters(network).items() if id(parameter) in trained}
