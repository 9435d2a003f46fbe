"""From a network in one piece to the form in which the run trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.distributed.degrees import fit_degrees

if TYPE_CHECKING:
    from worldsmith.distributed.world import World
    from worldsmith.models.cosmos3.generator import Cosmos3Generator


def distribute(generator: Cosmos3Generator, world: World) -> None:
    """Applies activation checkpointing and FSDP to the network, in place.

    One process in float32 needs no sharding and gets none. One process in bfloat16 is sharded over itself: that is what
    casts the float32 weights for the forward and backward pass.
    """
    import torch

    config = generator.config
    parallelism, recompute = config.parallelism, config.activation_checkpointing
    degrees = fit_degrees(
        parallelism.data_parallel_shard_degree, parallelism.data_parallel_replicate_degree, world.size
    )
    layers = list(generator.network.language_model.model.layers)
    if recompute.mode == "full":
        from worldsmith.distributed.activation_checkpointing import checkpoint_layers

        checkpoint_layers(layers, preserve_rng_state=recompute.preserve_rng_state)
    if world.size > 1 or config.precision != "float32":
        from worldsmith.distributed.fsdp import make_mesh, shard_network

        shard_network(
            generator.network,
            layers,
            mesh=make_mesh(world, degrees),
            compute_dtype=getattr(torch, config.precision),
            full_precision=[generator.network.time_embedder],
        )
