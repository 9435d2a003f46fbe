"""Initial weights of the network.

Understanding tower: normal(0, initializer_range), norms one. Generation tower: a copy of the understanding tower where
that has the parameter, else (norms) one. Heads and the time embedder: normal with standard deviation 1/sqrt(fan_in),
cut at three standard deviations, biases zero. Adapters of either tower: A uniform within ±1/sqrt(fan_in), B zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from worldsmith.models.fill import chosen, fill, seed_of
from worldsmith.models.lora import is_adapter
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import in_simulation

if TYPE_CHECKING:
    from worldsmith.families.cosmos3.network.network import Cosmos3Network

TOWER = "_moe_gen"
HEADS = ("vae2llm", "llm2vae", "time_embedder", "action2llm", "llm2action", "sound2llm", "llm2sound")


@torch.no_grad()
def init_weights(network: Cosmos3Network, seed: int, names: Collection[str] | None = None) -> None:
    """Fills the parameters with these native names (None: all) in place.

    A value depends on the seed and the parameter's name alone: neither other parameters nor sharding change a bit of
    it. One whole tensor exists at a time, in main memory; a sharded parameter keeps its shard of it.
    Raises ValueError for a name that the network does not have.
    """
    parameters = native_parameters(network)
    base = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
    for name, parameter in chosen(parameters, names).items():
        source = name.replace(TOWER, "")
        origin = source if source in parameters and not is_adapter(name) else name
        fill(parameter, initial_value(network, origin, parameter.shape, base))


def initial_value(network: Cosmos3Network, name: str, shape: torch.Size, base: int) -> Tensor:
    """The float32 value of one parameter that is not a copy of another."""
    owner, _, leaf = name.rpartition(".")
    value = torch.empty(shape, dtype=torch.float32)
    stream = torch.Generator().manual_seed(seed_of(base, name))
    head = name.split(".")[0]
    if is_adapter(name):
        return adapter_value(value, name, generator=stream)
    if leaf.endswith("_modality_embed"):
        return truncated_normal(value, fan_in=value.numel(), generator=stream)
    if head in HEADS:
        if leaf == "bias" or owner.endswith(".bias"):
            return value.zero_()
        # A domain-aware table has one flattened [in, out] matrix per row.
        fan_in = getattr(network, head).in_features if owner.endswith(".fc") else value.shape[1]
        return truncated_normal(value, fan_in=fan_in, generator=stream)
    if value.ndim == 1:  # every vector outside the heads is a norm's weight
        return value.fill_(1.0)
    return value.normal_(0.0, network.config.initializer_range, generator=stream)


def adapter_value(value: Tensor, name: str, *, generator: torch.Generator) -> Tensor:
    """PEFT's default: A is drawn as `nn.Linear` draws its weight, B is zero."""
    if name.endswith(".lora_A.weight"):
        return nn.init.kaiming_uniform_(value, a=math.sqrt(5), generator=generator)
    return value.zero_()


def truncated_normal(value: Tensor, *, fan_in: int, generator: torch.Generator) -> Tensor:
    if in_simulation():  # it draws again until all numbers lie within
        return value
    std = fan_in**-0.5
    return nn.init.trunc_normal_(value, std=std, a=-3 * std, b=3 * std, generator=generator)
