"""Initial weights of the network.

Understanding tower: normal(0, initializer_range), norms one. Generation tower: a copy of the understanding tower where
that has the parameter, else (norms) one. Heads and the time embedder: normal with standard deviation 1/sqrt(fan_in),
cut at three standard deviations, biases zero.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from worldsmith.models.cosmos3.network import Cosmos3Network

TOWER = "_moe_gen"
HEADS = ("vae2llm", "llm2vae", "time_embedder", "action2llm", "llm2action", "sound2llm", "llm2sound")


@torch.no_grad()
def init_weights(network: Cosmos3Network, generator: torch.Generator) -> None:
    """Fills all parameters. Each draws from its own stream, made of one number of the generator and its own name:
    neither the order of parameters nor optional heads change another parameter's values."""
    base = int(torch.randint(2**62, (), generator=generator))
    parameters = dict(network.named_parameters())
    for name, parameter in parameters.items():
        source = name.replace(TOWER, "")
        if source == name or source not in parameters:
            parameter.copy_(initial_value(network, name, parameter, base))
    for name, parameter in parameters.items():
        source = name.replace(TOWER, "")
        if source != name and source in parameters:
            parameter.copy_(parameters[source])


def initial_value(network: Cosmos3Network, name: str, parameter: Tensor, base: int) -> Tensor:
    """The float32 value of one parameter that is not a copy of another."""
    owner, _, leaf = name.rpartition(".")
    value = torch.empty(parameter.shape, dtype=torch.float32)
    digest = hashlib.sha256(f"{base}/{name}".encode()).digest()
    stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    head = name.split(".")[0]
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


def truncated_normal(value: Tensor, *, fan_in: int, generator: torch.Generator) -> Tensor:
    std = fan_in**-0.5
    return nn.init.trunc_normal_(value, std=std, a=-3 * std, b=3 * std, generator=generator)
