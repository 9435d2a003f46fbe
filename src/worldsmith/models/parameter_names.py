"""Internal parameter names: the names in checkpoints and name filters, independent of wrappers around the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "base_layer.")
"""Name parts inserted by torch.compile, activation checkpointing, FSDP1, and by PEFT around adapted layers."""
ADAPTER = "default"
"""PEFT's name of the only adapter of a network."""


def native_name(name: str) -> str:
    """Removes the name parts that torch.compile, checkpointing, FSDP and PEFT add to a parameter name.

    Examples: `….q_proj.base_layer.weight` → `….q_proj.weight`, `….lora_A.default.weight` → `….lora_A.weight`.
    """
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    for matrix in ("lora_A", "lora_B"):
        name = name.replace(f"{matrix}.{ADAPTER}.", f"{matrix}.")
    return name


def native_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the network's parameters (not copies) by internal parameter name, in registration order."""
    return {native_name(name): parameter for name, parameter in network.named_parameters()}
