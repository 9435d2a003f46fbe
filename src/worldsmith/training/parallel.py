"""This process in the run, and its network as the run trains it: compiled, with recomputation, and sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from worldsmith.config.errors import UserError
from worldsmith.distributed.degrees import Degrees, plan_degrees
from worldsmith.distributed.launcher_messages import max_world_size
from worldsmith.distributed.world import World, start_world, world_size

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.config.sections import CompileConfig
    from worldsmith.models.model import Model
    from worldsmith.models.network_parts import NetworkParts
    from worldsmith.training.run_config import LoopConfig, RunConfig

Run = TypeVar("Run", bound="RunConfig")
MAX_COMPILATIONS = 32
"""Max number of compilations of a method: one per fixed length, per set of inputs with gradients, and per grad mode."""


def join_world(model: Model.Config) -> World:
    """Initializes the process group of a run, with the context-parallel degree of `model`. Collective.

    Returns rank, device and groups of this process.

    Raises:
        ValueError: If the parallelism degrees do not fit the number of processes.
    """
    return start_world(context_parallel=plan_degrees(model.parallelism, world_size()).context)


def keep_batch(config: Run, world: World) -> Run:
    """Returns a config whose gradient accumulation keeps the packs per step of a launch with `--nnodes MIN:MAX`.

    `trainer.grad_accum_iter` is meant for the max number of processes; fewer processes accumulate more packs each.

    Args:
        config: Config of the run; returned unchanged if the number of processes is fixed.
        world: This process.

    Raises:
        UserError: If the packs cannot be divided evenly among the data-parallel processes.
    """
    most = max_world_size()
    if most is None:
        return config
    loop, shards = config.trainer, plan_degrees(config.model.config.parallelism, most).data
    packs = loop.grad_accum_iter * shards
    if packs % world.data_size:
        raise UserError(
            f"trainer.grad_accum_iter = {loop.grad_accum_iter}: the {packs} packs of a step with {shards} "
            f"data-parallel processes cannot be divided evenly among {world.data_size}; set it to a multiple of "
            f"{world.data_size}, or give all machines the same --nproc-per-node"
        )
    return replace(config, trainer=replace(loop, grad_accum_iter=packs // world.data_size))


def prepare_process(loop: LoopConfig, world: World) -> None:
    """Sets the number of CPU threads of this process and seeds its random generators (trainer.seed + rank)."""
    import rich.style  # noqa: F401 (uses a random number when it is first imported: before the seeds)
    import torch

    from worldsmith.checkpoint.run.rng_state import seed_everything

    if loop.cpu_threads is not None:
        torch.set_num_threads(loop.cpu_threads)
    seed_everything(loop.seed + world.rank)


def build_model(config: Model.Config, world: World) -> Model:
    """Builds the model with its network sharded over the ranks, on the device, with uninitialized weights. Collective.

    Args:
        config: Model config.
        world: This process.

    Raises:
        ValueError: If the parallelism degrees do not fit the number of processes.
        UserError: If the model cannot be trained on the device.
    """
    model = build_without_memory(config, world)
    allocate_network(model, world)
    return model


def build_without_memory(config: Model.Config, world: World) -> Model:
    """Builds the model on the meta device; its encoders can be used. Raises UserError if the device does not fit."""
    config.check_device(world.device)
    for converter in config.converters:
        converter.check_device(world.device)
    return config.build(device="meta")  # so that no process ever holds the whole network


def allocate_network(model: Model, world: World) -> None:
    """Shards the network of a model on the meta device, and allocates it on the device of this process. Collective.

    Raises ValueError if the parallelism degrees do not fit the number of processes.
    """
    prepare_network(model, world)
    model.materialize(world.device)
    if model.in_host_ram and world.device.startswith("cuda"):
        from worldsmith.distributed.offload import pin_offloaded

        pin_offloaded(model.network)


def prepare_network(model: Model, world: World) -> None:
    """Compiles the network, adds activation checkpointing and shards it, in place, on the meta device. Collective."""
    config, parts = model.config, model.parts()
    degrees = plan_degrees(config.parallelism, world.size)
    share_context(parts, world)
    recompute_layers(model)
    compile_layers(model, world)  # after it, so that layers are compiled with their checkpointing
    shard(model, parts, world, degrees)


def recompute_layers(model: Model) -> None:
    """Adds activation checkpointing to the layers of the network in place, as the model config specifies."""
    from worldsmith.distributed.activation_checkpointing import divide_layers, recompute_methods

    parts = model.parts()
    for layers, config in divide_layers(parts.layers, model.config.activation_checkpointing):
        pieces = parts.recomputed_pieces if config.mode == "selective" else ()
        recompute_methods(layers, pieces or parts.recomputed, config, saves_matmuls=parts.compiled)


def share_context(parts: NetworkParts, world: World) -> None:
    """Makes the network shard the tokens of each packed batch over the context-parallel group of `world`, if any."""
    group = world.context_group
    if group is not None and parts.share_tokens is not None:
        from worldsmith.distributed.context_parallel import SharedStream

        parts.share_tokens(lambda length: SharedStream(group, length))


def shard(model: Model, parts: NetworkParts, world: World, degrees: Degrees) -> None:
    """Casts the network to bfloat16 if `fsdp_master_dtype` is that, and shards it with FSDP, in place. Collective.

    It is sharded only if `is_sharded` returns True for the model config and the number of ranks.
    """
    import torch

    config = model.config
    if config.parallelism.fsdp_master_dtype == "bfloat16":
        model.cast(torch.bfloat16)
    if not is_sharded(config, world.size):
        return
    from worldsmith.distributed.activation_checkpointing import spread_evenly
    from worldsmith.distributed.fsdp import make_mesh, shard_network
    from worldsmith.models.parameter_names import native_parameters

    held, whole = model.quantized_layers, replicated_modules(parts)
    offloaded_layers = spread_evenly(parts.layers, config.parallelism.offload_fraction)
    offloaded = shard_network(
        model.network,
        [*parts.layers, *parts.units],
        mesh=make_mesh(world, degrees),
        compute_dtype=getattr(torch, config.precision),
        full_precision=[module for module in parts.full_precision if module not in whole],
        unused=parts.unused,
        entries=parts.entries,
        left_alone=[
            *(parameter for name, parameter in native_parameters(model.network).items() if name in held),
            *(parameter for module in whole for parameter in module.parameters()),
        ],
        offload=config.parallelism.offload,
        quantized=list(held.values()),
        resident=[layer for layer in parts.layers if layer not in offloaded_layers],
    )
    on_host = set(offloaded)
    model.in_host_ram = [name for name, p in native_parameters(model.network).items() if p in on_host]


def nested_modules(parts: NetworkParts) -> list[nn.Module]:
    """Returns the modules inside layers that compute in float32, such as the affine norms of Wan's blocks."""
    inside = {module for layer in parts.layers for module in layer.modules()}
    return [module for module in parts.full_precision if module in inside]


def replicated_modules(parts: NetworkParts) -> list[nn.Module]:
    """Returns the frozen float32 modules inside layers, whose parameters are replicated on every rank.

    As separate FSDP units they would cost an all-gather each, and their hooks cannot be part of a compiled layer.
    """
    return [m for m in nested_modules(parts) if not any(p.requires_grad for p in m.parameters())]


def compile_layers(model: Model, world: World) -> None:
    """Compiles the layers of the network in place, as `model.config.compile` specifies.

    If the network is sharded, a layer that contains a trained float32 module is compiled with graph breaks: the module
    is an FSDP unit, and its hooks cannot be compiled.
    """
    config, parts = model.config, model.parts()
    sharded = is_sharded(config, world.size)
    units = set(nested_modules(parts)).difference(replicated_modules(parts)) if sharded else set()
    for layer in parts.layers:
        if layer not in parts.uncompiled:
            compile_methods([layer], parts.compiled, config.compile, fullgraph=units.isdisjoint(layer.modules()))


def is_sharded(model: Model.Config, processes: int) -> bool:
    """Returns whether the network is wrapped by FSDP.

    This is also the case in a run of one process whose compute dtype differs from the dtype of its parameters: FSDP
    then casts the parameters for the forward and backward pass. FSDP also copies offloaded parameters to the device.

    Args:
        model: Model config.
        processes: Number of ranks.
    """
    kept_apart = model.lora_enabled and model.precision != "float32"  # adapters are float32 in any case
    streams = model.parallelism.offload != "none"
    return processes > 1 or model.precision != model.parallelism.fsdp_master_dtype or kept_apart or streams


def compile_methods(
    modules: Iterable[nn.Module], names: Sequence[str], config: CompileConfig, *, fullgraph: bool = True
) -> None:
    """Compiles methods of each module with torch.compile, in place; parameter names do not change.

    Layers with the same code share one compilation.

    Args:
        modules: Modules whose methods are compiled.
        names: Method names.
        config: Settings of torch.compile; no effect if it is not enabled.
        fullgraph: Whether graph breaks are forbidden.
    """
    if not config.enabled:
        return
    for module in modules:
        for name in names:
            compiled = compile_function(getattr(module, name), dynamic=config.compile_dynamic, fullgraph=fullgraph)
            setattr(module, name, compiled)


def compile_function(function: Callable[..., Any], *, dynamic: bool, fullgraph: bool = True) -> Callable[..., Any]:
    """Compiles a function with torch.compile; its first call raises UserError if the compilation fails.

    Args:
        function: Function or method.
        dynamic: Compile once for all shapes; False: once per shape, at most `MAX_COMPILATIONS` times.
        fullgraph: Whether graph breaks are forbidden.
    """
    import torch

    # torch's overloads forget the limit, which its signature has.
    fast = torch.compile(function, fullgraph=fullgraph, dynamic=dynamic, recompile_limit=MAX_COMPILATIONS)  # type: ignore[call-overload]

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return fast(*args, **kwargs)
        except RuntimeError as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            name = getattr(function, "__qualname__", repr(function))
            remedy = "" if dynamic else "compile_dynamic = true (suits packs of many sizes), or "
            raise UserError(
                f"model.config.compile: {name} could not be compiled; set {remedy}enabled = false. "
                f"{type(error).__name__}: {error}"
            ) from error

    return run
