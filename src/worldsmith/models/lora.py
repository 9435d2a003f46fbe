"""Low-rank adapters (LoRA) with PEFT's layers: y = W x + (alpha / rank) · B A x, where only A and B are trained.

An adapted layer's parameters have the internal parameter names `<path>.weight`, `<path>.lora_A.weight` [rank, in] and
`<path>.lora_B.weight` [out, rank]. PEFT is imported only if adapters are used, because its import takes seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from worldsmith.config import WrongValueError
from worldsmith.config.tree.suggest import nearest
from worldsmith.models.parameter_names import ADAPTER, native_name, native_parameters

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ALL_LINEAR, HEAD = "all-linear", "lm_head"
"""PEFT's target name for all linear layers except the language model head, and the name of that head."""
MATRICES = (".lora_A.weight", ".lora_B.weight")


def match_targets(target_modules: str, layers: Iterable[str]) -> dict[str, list[str]]:
    """Returns LoRA target -> paths of the layers that match the target; for `all-linear`, layer -> [layer].

    Args:
        target_modules: Comma-separated names: the last components of layer paths, or `all-linear` for all linear
            layers except the language model head.
        layers: Paths of the linear layers.

    Raises:
        ValueError: If `target_modules` is empty, or a target in it is duplicate or matches no layer.
    """
    layers = list(layers)
    if target_modules.strip() == ALL_LINEAR:
        return {layer: [layer] for layer in layers if layer.rpartition(".")[2] != HEAD}
    found: dict[str, list[str]] = {}
    for target in read_targets(target_modules):
        found[target] = [layer for layer in layers if f".{layer}".endswith(f".{target}")]
        if not found[target]:
            raise unknown_target(target_modules, target, layers)
    return found


def read_targets(target_modules: str) -> list[str]:
    """Splits a comma-separated list of LoRA targets.

    Raises:
        WrongValueError: If `target_modules` is empty, or a target in it is empty or duplicate.
    """
    targets, given = [target.strip() for target in target_modules.split(",")], {"lora_target_modules": target_modules}
    if not any(targets):
        remedy = "name the layers that get an adapter, such as q_proj"
        raise WrongValueError(given, why="it is empty", remedy=remedy)
    for index, target in enumerate(targets):
        if target in targets[:index] or not target:
            why = f"'{target}' occurs twice" if target else "a name between its commas is empty"
            raise WrongValueError(given, why=why)
    return targets


def unknown_target(target_modules: str, target: str, layers: list[str]) -> WrongValueError:
    """Returns the error for a LoRA target that matches no layer.

    Args:
        target_modules: The complete setting `lora_target_modules`, comma-separated.
        target: The name in it that matches no layer.
        layers: Names of all linear layers, of which the most similar ones are shown.
    """
    leaves = list(dict.fromkeys(layer.rpartition(".")[2] for layer in layers))
    close = nearest(target.rpartition(".")[2], leaves)
    advice = f"similar names: {', '.join(close)}" if close else f"possible names: {', '.join(leaves)}"
    kind = "no linear layer has a path that ends with it" if "." in target else "no linear layer has this name"
    why = f"'{target}' cannot get an adapter: {kind} (the complete name is compared)"
    return WrongValueError({"lora_target_modules": target_modules}, why=why, remedy=advice)


def inject_adapters(
    network: nn.Module,
    *,
    rank: int,
    alpha: float,
    target_modules: str,
    dropout: float = 0.0,
    adaptable: Collection[str] | None = None,
) -> list[str]:
    """Adds LoRA adapters to linear layers in place, and freezes all other parameters.

    Adapters are created on the device of their layers (also meta), with B = 0.

    Args:
        network: Network without adapters.
        rank: Rank r of the adapters.
        alpha: Scale: the adapter output is multiplied by alpha / rank.
        target_modules: Comma-separated last components of layer paths, or `all-linear` for all linear layers except
            the language model head.
        dropout: Dropout probability of the adapter inputs.
        adaptable: Layers from which `all-linear` selects; None: all linear layers.

    Returns:
        Paths of the adapted layers.

    Raises:
        ValueError: If a target matches no linear layer, or the network already has adapters.
    """
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    if adapted_layers(network):
        raise ValueError("the network already has adapters; merge them first")
    linear = [name for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)]
    choice = adaptable if adaptable is not None and target_modules.strip() == ALL_LINEAR else linear
    targets = match_targets(target_modules, choice)
    scale: Any = alpha  # PEFT divides it by r, and takes fractions although it is declared as an int
    config = LoraConfig(r=rank, lora_alpha=scale, target_modules=list(targets), lora_dropout=dropout, bias="none")
    with torch.random.fork_rng(devices=[]):  # initial values are sampled by name, not from the process's stream
        inject_adapter_in_model(config, network, adapter_name=ADAPTER)
    adapted = set(adapted_layers(network))
    named = {layer for layers in targets.values() for layer in layers}
    if adapted != named:
        raise RuntimeError(f"PEFT adapted {len(adapted)} layers, but the targets name {len(named)}")
    return sorted(adapted)


def adapted_layers(network: nn.Module) -> dict[str, Any]:
    """Returns PEFT's LoRA layers by module path; empty, without importing PEFT, for a network without adapters."""
    if not any(is_adapter(name) for name in native_parameters(network)):
        return {}
    from peft.tuners.lora import LoraLayer

    return {native_name(name): module for name, module in network.named_modules() if isinstance(module, LoraLayer)}


def is_adapter(name: str) -> bool:
    """Returns whether an internal parameter name belongs to a LoRA matrix A or B."""
    return name.endswith(MATRICES)


def init_adapter(value: Tensor, name: str, generator: torch.Generator | None = None) -> Tensor:
    """Fills a LoRA matrix in place with PEFT's default: A like the weight of `nn.Linear`, B with zeros.

    Args:
        value: Tensor to overwrite.
        name: Internal parameter name, which distinguishes A from B.
        generator: Random generator; None: the global one.

    Returns:
        `value`.
    """
    from torch import nn

    if name.endswith(".lora_A.weight"):
        return nn.init.kaiming_uniform_(value, a=5**0.5, generator=generator)
    return nn.init.zeros_(value)


def adapter_state(network: nn.Module) -> dict[str, Tensor]:
    """Returns the LoRA matrices (detached, not copied) by internal parameter name; DTensors stay sharded."""
    return {name: p.detach() for name, p in native_parameters(network).items() if is_adapter(name)}


def merge_adapters(network: nn.Module) -> int:
    """Merges all adapters in place: W ← W + (alpha / rank) · B A, computed in float32; removes the adapters.

    Weights keep their dtype and stay frozen.

    Returns:
        Number of weights that changed.

    Raises:
        ValueError: If there are no adapters or all B are zero (the network is not changed), or if the updates are too
            small to change any element.
    """
    import torch

    layers = adapted_layers(network)
    if not layers:
        raise ValueError("there are no adapters to merge")
    if not any(bool(layer.lora_B[ADAPTER].weight.any()) for layer in layers.values()):
        raise ValueError(
            f"the adapters of all {len(layers)} layers are zero, as before training: merging them has no effect"
        )
    changed = 0
    with torch.no_grad():
        for path, layer in layers.items():
            weight = layer.base_layer.weight
            before = weight.detach().clone()
            low, high = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
            weight.copy_(merged_weight(weight, low, high, layer.scaling[ADAPTER]))
            changed += bool((weight != before).any())
            parent, _, leaf = path.rpartition(".")
            setattr(network.get_submodule(parent), leaf, layer.base_layer)
    del network.peft_config
    if not changed:
        raise ValueError(
            f"merging changed no weight: the adapters of all {len(layers)} layers are smaller than the rounding of "
            f"{weight.dtype}; merge in float32"
        )
    return changed


def merged_weight(weight: Tensor, low: Tensor, high: Tensor, scale: float) -> Tensor:
    """Computes and returns W + scale · B A in float32.

    Args:
        weight: W [out, in].
        low: A [rank, in].
        high: B [out, rank].
        scale: alpha / rank.
    """
    return weight.float() + scale * (high.float() @ low.float())
