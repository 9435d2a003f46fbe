"""FSDP2: every decoder layer is one unit, the root module has the other parameters.

Parameters are stored in fp32 (master weights), and the compute dtype may be bf16. The sharded step equals the
single-process step: gradients are reduced in fp32 and divided by the number of ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from worldsmith.distributed.degrees import Degrees
from worldsmith.distributed.world import World, ensure_process_group


def make_mesh(world: World, degrees: Degrees) -> DeviceMesh:
    """Creates the device mesh for FSDP. Collective: all ranks must call it.

    Args:
        world: This process. A process group of one rank is created if none exists.
        degrees: Parallelism degrees of the run.

    Returns:
        Mesh with the dimension dp_shard; with several replicas, with the dimensions dp_replicate and dp_shard.
    """
    ensure_process_group(world)
    device_type = torch.device(world.device).type
    if degrees.replicate == 1:
        return init_device_mesh(device_type, (degrees.weights,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(
        device_type, (degrees.replicate, degrees.weights), mesh_dim_names=("dp_replicate", "dp_shard")
    )


def shard_network(
    network: nn.Module,
    units: Iterable[nn.Module],
    *,
    mesh: DeviceMesh,
    compute_dtype: torch.dtype,
    full_precision: Iterable[nn.Module] = (),
    unused: Iterable[nn.Module] = (),
    entries: Mapping[nn.Module, Sequence[str]] | None = None,
    left_alone: Iterable[nn.Parameter] = (),
    offload: Literal["none", "frozen", "all"] = "none",
    quantized: Collection[nn.Module] = (),
    resident: Collection[nn.Module] = (),
) -> list[nn.Parameter]:
    """Shards `network` in place with FSDP2; each of `units` is all-gathered separately when it is used.

    All ranks must call it. Inputs are never cast, since positions and timesteps must stay fp32. The gradient divide
    factor is not changed: gloo has no pre-multiplied sum, and the loss weights expect the mean over ranks.

    Args:
        network: Root module, which becomes an FSDP unit in addition to `units`.
        units: Submodules that become separate FSDP units, such as decoder layers.
        mesh: Mesh from `make_mesh`.
        compute_dtype: Dtype of all-gathered parameters in the forward and backward pass.
        full_precision: Modules that compute in fp32.
        unused: Modules that no forward pass uses. They get no mixed-precision policy: with one, PyTorch would expect
            their gradients in steps with several packed batches.
        entries: Names of methods, by module, for which its parameters are all-gathered as for `forward`.
        left_alone: Parameters that are not sharded; every rank stores them completely.
        offload: Sharded parameters that stay in host RAM, with the weights of the layers of `quantized`.
        quantized: Quantized layers inside of `units`, see `offload.HostLayer`.
        resident: Modules of `units` that are not offloaded.

    Returns:
        Offloaded parameters, which the caller allocates in host RAM.
    """
    exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = replace(exact, param_dtype=compute_dtype)
    # The velocities are views, as PyTorch points out at the first step; they are not changed in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    whole = set(left_alone)
    for module in full_precision:
        fully_shard(module, mesh=mesh, mp_policy=exact, ignored_params=whole)
    units = list(units)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy, ignored_params=whole)
    for module in unused:
        fully_shard(module, mesh=mesh, ignored_params=whole)
    # By default, the root keeps its few parameters all-gathered after a forward pass. After sample generation,
    # `network.parameters()` would then return the all-gathered parameters instead of the sharded ones.
    fully_shard(network, mesh=mesh, mp_policy=policy, reshard_after_forward=True, ignored_params=whole)
    for module, names in (entries or {}).items():
        for name in names:
            register_fsdp_forward_method(module, name)
    if offload == "none":
        return []
    from worldsmith.distributed.offload import offload as move_to_host  # which uses internal classes of FSDP

    return move_to_host(network, units, quantized, trained=offload == "all", resident=resident)


def reduce_gradients(network: nn.Module, *, last: bool, every_pack: bool) -> None:
    """Sets whether the next backward pass of `network` reduces gradients over the ranks; no effect without FSDP.

    Args:
        network: Root module of FSDP, or an unsharded network.
        last: Whether the next backward pass is the last one of the optimizer step.
        every_pack: Whether the backward pass of every packed batch of the step reduce-scatters gradients, and only the
            last one all-reduces them over replicas. False: only the last one reduces, and earlier ones accumulate full
            fp32 gradients on each rank.
    """
    if isinstance(network, FSDPModule):
        network.set_requires_gradient_sync(last or every_pack)
        network.set_requires_all_reduce(last)


def forget_failed_forward(network: nn.Module) -> None:
    """Resets FSDP after an exception in a forward pass of `network`; no effect without FSDP.

    Without the reset, the layer in which the exception was raised keeps its all-gathered parameters, and the next
    backward pass produces no gradients for it.
    """
    if isinstance(network, FSDPModule) and network._get_fsdp_state()._is_root is not None:  # None before the first pass
        network.reset_iter_state()


def count_collectives(network: nn.Module, world: World) -> int:
    """Returns how many collectives this process has started, in total, in the process groups that a forward pass uses.

    Ranks whose counts differ after a failure cannot continue, since their next collectives would not match.

    Args:
        network: Network; if it is sharded, the groups of its device mesh are included.
        world: This process, with its context-parallel group.
    """
    mesh = next((p.device_mesh for p in network.parameters() if isinstance(p, DTensor)), None)
    groups = {dist.group.WORLD, world.context_group, *(mesh.get_all_groups() if mesh is not None else ())}
    backends: list[Any] = [
        group._get_backend(device)
        for group in groups
        if group is not None
        for device in group._device_types
        if device.type in ("cpu", torch.device(world.device).type)
    ]
    return sum(backend._get_sequence_number_for_group() for backend in backends)
