"""From a model's config to the network in the form in which the run trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.config.tree.degrees import Degrees, check_heads, fit_degrees
from worldsmith.distributed.world import World, start_world, world_size

if TYPE_CHECKING:
    from worldsmith.models.cosmos3.generator import Cosmos3Generator
    from worldsmith.models.cosmos3.network import Cosmos3Network


def plan_degrees(model: Cosmos3Generator.Config, processes: int) -> Degrees:
    """How the processes are arranged. Raises ValueError with the degrees that would work."""
    asked, network = model.parallelism, model.network
    check_heads(asked.context_parallel_shard_degree, network.num_attention_heads, network.num_key_value_heads)
    return fit_degrees(
        asked.data_parallel_shard_degree,
        asked.data_parallel_replicate_degree,
        processes,
        context=asked.context_parallel_shard_degree,
    )


def join_world(model: Cosmos3Generator.Config) -> World:
    """This process's place in the run. Raises ValueError when the degrees do not fit the number of processes."""
    return start_world(context_parallel=plan_degrees(model, world_size()).context)


def build_generator(model: Cosmos3Generator.Config, world: World) -> Cosmos3Generator:
    """The generator with its network cut up for `world`, on the device, without values: load or initialise them next.

    Made on the meta device first, so that no process ever holds the whole network. Raises ValueError for degrees that
    do not fit, UserError for attention that cannot train on the device.
    """
    from worldsmith.distributed.activation_checkpointing import recompute_methods
    from worldsmith.distributed.compile import compile_methods
    from worldsmith.models.cosmos3.attention.modes import check_device
    from worldsmith.models.cosmos3.layers import HALVES, TOKENWISE

    check_device(model.joint_attn_implementation, world.device)
    degrees = plan_degrees(model, world.size)
    generator: Cosmos3Generator = model.build(device="meta")
    layers = list(generator.network.language_model.model.layers)
    share_context(generator.network, world)
    compile_methods(layers, TOKENWISE, model.compile)
    recompute_methods(layers, HALVES, model.activation_checkpointing)
    shard(generator.network, model, world, degrees)
    generator.materialize(world.device)
    return generator


def share_context(network: Cosmos3Network, world: World) -> None:
    """Lets the ranks of a context-parallel group share the tokens of a pack."""
    group = world.context_group
    if group is not None:
        from worldsmith.distributed.context_parallel import SharedStream

        network.share_tokens = lambda length: SharedStream(group, length)


def shard(network: Cosmos3Network, model: Cosmos3Generator.Config, world: World, degrees: Degrees) -> None:
    """Shards the network over all ranks.

    One process in float32 needs no sharding and gets none. One process in bfloat16 is sharded over itself: that is what
    casts the float32 weights for the forward and backward pass.
    """
    import torch

    if model.parallelism.fsdp_master_dtype == "bfloat16":
        network.cast(torch.bfloat16)
    kept_apart = model.lora_enabled and model.precision != "float32"  # adapters are float32 in any case
    if world.size == 1 and model.precision == model.parallelism.fsdp_master_dtype and not kept_apart:
        return
    from worldsmith.distributed.fsdp import make_mesh, shard_network

    language, layers = network.language_model, list(network.language_model.model.layers)
    shard_network(
        network,
        [*layers, language.model.embed_tokens],
        mesh=make_mesh(world, degrees),
        compute_dtype=getattr(torch, model.precision),
        full_precision=[network.time_embedder],
        unused=[language.lm_head],
        entries={network: ("read_text", "text_states"), **dict.fromkeys(layers, ("read_text",))},
    )
