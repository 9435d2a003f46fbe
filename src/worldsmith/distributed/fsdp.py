"""FSDP2: every decoder layer is one unit, the root holds the rest. Masters stay fp32, compute may be bf16.

The sharded step equals the single-process step: gradients are reduced in fp32 and averaged over the ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from worldsmith.distributed.world import ensure_process_group

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from worldsmith.distributed.degrees import Degrees
    from worldsmith.distributed.world import World


def make_mesh(world: World, degrees: Degrees) -> DeviceMesh:
    """The mesh that FSDP shards over: 1-D when nothing is replicated, else (dp_replicate, dp_shard)."""
    ensure_process_group(world)
    device_type = torch.device(world.device).type
    if degrees.replicate == 1:
        return init_device_mesh(device_type, (degrees.shard,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(
        device_type, (degrees.replicate, degrees.shard), mesh_dim_names=("dp_replicate", "dp_shard")
    )


def shard_network(
    network: nn.Module,
    layers: Iterable[nn.Module],
    *,
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
    full_precision: Iterable[nn.Module] = (),
) -> None:
    """Shards `network` in place over `mesh`; each of `layers` is gathered on its own.

    Modules in `full_precision` compute in fp32. Inputs are never cast, since positions and timesteps must stay fp32.
    The divide factor is left alone: gloo has no pre-multiplied sum, and the loss weights expect the mean over ranks.
    """
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = exact if compute_dtype == torch.float32 else replace(exact, param_dtype=compute_dtype)
    # The velocities are views, as PyTorch points out at the first step; nothing changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for module in full_precision:
        fully_shard(module, mesh=mesh, mp_policy=exact)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh, mp_policy=policy)
