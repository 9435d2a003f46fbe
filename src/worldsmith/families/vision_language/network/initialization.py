"""First values of weights and buffers, as transformers gives them to the class, each by its own name and seed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from worldsmith.models.fill import chosen, fill, seed_of
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_name
from worldsmith.models.real_values import in_simulation

DONE = "_is_hf_initialized"
"""With this attribute transformers leaves a tensor, or a module, as it is."""


@torch.no_grad()
def initialize_backbone(network: Any, seed: int, names: Collection[str] | None = None) -> None:
    """Fills the parameters with these native names (None: all) in place, sharded or not.

    A value depends on the seed and the parameter's name alone. One whole tensor exists at a time, in main memory.
    Raises ValueError for an unknown name.
    """
    places = {native_name(place): place for place, _ in network.named_parameters()}
    for name, place in chosen(places, names).items():
        fill(network.get_parameter(place), initial_backbone_value(network, name, place, seed))


def initial_backbone_value(network: Any, name: str, place: str, seed: int) -> Tensor:
    """The float32 value of one parameter. Raises ValueError for one that transformers gives no first value."""
    path, _, leaf = place.rpartition(".")
    owner = network.get_submodule(path)
    fresh = nn.Parameter(torch.full(network.get_parameter(place).shape, torch.nan))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, name))
        if is_adapter(name):
            return adapter_value(fresh, name)
        kept = dict(owner._parameters)
        others = [tensor for key, tensor in kept.items() if key != leaf and tensor is not None]
        try:
            owner._parameters[leaf] = fresh
            with marked([*others, *owner.buffers(recurse=False)]):
                owning_model(network, path)._init_weights(owner)
        finally:
            owner._parameters.update(kept)
    if not in_simulation() and fresh.isnan().any():
        raise ValueError(
            f"{name} has no first value of its own in transformers: set checkpoint.load_path to weights that have it"
        )
    return fresh.detach()


def adapter_value(value: Tensor, name: str) -> Tensor:
    """PEFT's default: A is drawn as `nn.Linear` draws its weight, B is zero."""
    if name.endswith(".lora_A.weight"):
        return nn.init.kaiming_uniform_(value, a=5**0.5).detach()
    return torch.zeros_like(value)


def owning_model(network: Any, path: str) -> Any:
    """The model of transformers that gives the module at this path its first values: the innermost around it."""
    while path and not isinstance(network.get_submodule(path), PreTrainedModel):
        path = path.rpartition(".")[0]
    return network.get_submodule(path)


@torch.no_grad()
def compute_buffers(network: Any) -> None:
    """Gives the buffers that no checkpoint holds, such as rotary frequencies, their values.

    Memory that was only allocated holds garbage. Raises RuntimeError for a buffer that transformers does not compute.
    """
    for path, owner in network.named_modules():
        buffers = dict(owner.named_buffers(recurse=False))
        if not buffers:
            continue
        for buffer in buffers.values():
            buffer.fill_(torch.nan) if buffer.is_floating_point() or buffer.is_complex() else buffer.zero_()
        with marked(owner.parameters(recurse=False)):
            owning_model(network, path)._init_weights(owner)
        for name, buffer in owner.named_buffers(recurse=False):
            if not in_simulation() and buffer.isnan().any():
                raise RuntimeError(f"transformers computes no value for the buffer {path}.{name} of such a network")


class marked:  # noqa: N801 (a context manager)
    """Tensors that transformers leaves as they are meanwhile."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = [tensor for tensor in tensors if tensor is not None]

    def __enter__(self) -> None:
        for tensor in self.tensors:
            setattr(tensor, DONE, True)

    def __exit__(self, *_: object) -> None:
        for tensor in self.tensors:
            delattr(tensor, DONE)
