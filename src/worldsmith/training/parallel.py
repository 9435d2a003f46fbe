"""This process in the run, and from a model's config to the network in the form in which the run trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.config.errors import WrongValueError
from worldsmith.config.tree.degrees import Degrees, fit_degrees
from worldsmith.distributed.world import World, start_world, world_size

if TYPE_CHECKING:
    from worldsmith.models.model import Model, NetworkParts
    from worldsmith.training.run_config import LoopConfig


def plan_degrees(model: Model.Config, processes: int) -> Degrees:
    """How the processes are arranged. Raises WrongValueError with the degrees that would work."""
    asked = model.parallelism
    model.check_context(asked.context_parallel_shard_degree)
    shard, replicate = asked.data_parallel_shard_degree, asked.data_parallel_replicate_degree
    try:
        return fit_degrees(shard, replicate, processes, context=asked.context_parallel_shard_degree)
    except WrongValueError as error:
        error.args = (f"model.config.parallelism: {error}",)
        raise


def join_world(model: Model.Config) -> World:
    """This process's place in the run. Raises ValueError when the degrees do not fit the number of processes."""
    return start_world(context_parallel=plan_degrees(model, world_size()).context)


def prepare_process(loop: LoopConfig, world: World) -> None:
    """Threads and seeds of this process."""
    import rich.style  # noqa: F401 (draws a random number when it is first imported: before the seeds)
    import torch

    from worldsmith.checkpoint.run.rng_state import seed_everything

    if loop.cpu_threads is not None:
        torch.set_num_threads(loop.cpu_threads)
    seed_everything(loop.seed + world.rank)


def build_model(config: Model.Config, world: World) -> Model:
    """The model with its network cut up for `world`, on the device, without values: load or initialise them next.

    Raises ValueError for degrees that do not fit, UserError for what cannot train on the device.
    """
    config.check_device(world.device)
    for converter in config.converters:
        converter.check_device(world.device)
    model: Model = config.build(device="meta")  # so that no process ever holds the whole network
    prepare_network(model, world)
    model.materialize(world.device)
    return model


def prepare_network(model: Model, world: World) -> None:
    """Recomputes, compiles and shards the network of a model on the meta device, in place, as its config says."""
    from worldsmith.distributed.activation_checkpointing import recompute_methods
    from worldsmith.distributed.compile import compile_methods

    config, parts = model.config, model.parts()
    degrees = plan_degrees(config, world.size)
    share_context(parts, world)
    compile_methods([layer for layer in parts.layers if layer not in parts.uncompiled], parts.compiled, config.compile)
    recompute_methods(parts.layers, parts.recomputed, config.activation_checkpointing)
    shard(model, parts, world, degrees)


def share_context(parts: NetworkParts, world: World) -> None:
    """Lets the ranks of a context-parallel group share the tokens of a pack."""
    group = world.context_group
    if group is not None and parts.share_tokens is not None:
        from worldsmith.distributed.context_parallel import SharedStream

        parts.share_tokens(lambda length: SharedStream(group, length))


def shard(model: Model, parts: NetworkParts, world: World, degrees: Degrees) -> None:
    """Shards the network over all ranks, where it `is_sharded`."""
    import torch

    config = model.config
    if config.parallelism.fsdp_master_dtype == "bfloat16":
        model.cast(torch.bfloat16)
    if not is_sharded(config, world.size):
        return
    from worldsmith.distributed.fsdp import make_mesh, shard_network
    from worldsmith.models.parameter_names import native_parameters

    held = model.held
    shard_network(
        model.network,
        [*parts.layers, *parts.units],
        mesh=make_mesh(world, degrees),
        compute_dtype=getattr(torch, config.precision),
        full_precision=parts.full_precision,
        unused=parts.unused,
        entries=parts.entries,
        left_alone=[p for name, p in native_parameters(model.network).items() if name in held],
    )


def is_sharded(model: Model.Config, processes: int) -> bool:
    """Whether FSDP has the network: that of one process too, where it computes in another format than it keeps.

    FSDP over the process itself is then what casts the weights for the forward and backward pass.
    """
    kept_apart = model.lora_enabled and model.precision != "float32"  # adapters are float32 in any case
    return processes > 1 or model.precision != model.parallelism.fsdp_master_dtype or kept_apart
