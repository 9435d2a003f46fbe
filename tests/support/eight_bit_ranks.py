"""Steps of AdamW8bit on given gradients, sharded over ranks: `launch` runs `eight_bit_ranks.py OUT`.

The first rank writes weights and state, gathered, to OUT/<ranks>.pt.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from launch import fork_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from worldsmith.distributed.adamw_8bit import AdamW8bit


def take_steps(network: nn.Module, steps: int = 5) -> dict[str, Tensor]:
    """Weights and state after steps on gradients that follow from the step and the parameter alone."""
    optimizer = AdamW8bit([{"params": network.parameters()}], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(steps):
        for number, parameter in enumerate(network.parameters()):
            gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * step + number))
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = gradient
        optimizer.step()
    found: dict[str, Any] = {}
    for name, parameter in network.named_parameters():
        state = {"weight": parameter.detach(), **optimizer.state[parameter]}
        found |= {f"{name}.{quantity}": value for quantity, value in state.items()}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in found.items()}


def make_network() -> nn.Module:
    """Rows that 2 and 3 ranks cannot share evenly; on one rank of 3 the first weight has less than 4096 elements."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(192, 37), nn.Linear(67, 101), nn.Conv2d(32, 4, (7, 7)), nn.Linear(8, 2))


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    network = make_network()
    fully_shard(network, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    found = take_steps(network)
    if dist.get_rank() == 0:
        torch.save(found, out / f"{dist.get_world_size()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]))))
